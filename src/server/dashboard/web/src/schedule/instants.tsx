// A list of instants in both zones.

import { minute, relative } from '../lib/format';
import { now } from '../state/live';

/** The instants, each in UTC, in the zone of the browser, and relative to now. */
export function Instants({ at }: { at: string[] }) {
  return (
    <table class="instants">
      <thead>
        <tr>
          <th scope="col">UTC</th>
          <th scope="col">Local</th>
          <th scope="col">From now</th>
        </tr>
      </thead>
      <tbody>
        {at.map((one) => (
          <tr key={one}>
            <td class="num">{minute(one, 'utc')}</td>
            <td class="num">{minute(one, 'local')}</td>
            <td class="soft">{relative(one, now.value)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
