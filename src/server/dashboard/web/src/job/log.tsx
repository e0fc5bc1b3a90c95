// The log lines of a job's attempts: page by page, or followed as they are written.

import { useEffect, useRef, useState } from 'preact/hooks';
import { get, message, path } from '../api/client';
import type { Job, LogLine, LogPage } from '../api/types';
import { count, full } from '../lib/format';
import { mayUpdate } from '../state/live';
import { zone } from '../state/prefs';
import { Empty } from '../ui/basics';
import { CheckField, SelectField } from '../ui/fields';

const PAGE = 200;
/** Most lines on the page; the oldest go first. */
const MOST = 5000;
const FOLLOW_MS = 1000;

interface Lines {
  lines: LogLine[];
  dropped: number;
  cursor: string | null;
  /** Whether the latest page was full, so that there may be more. */
  more: boolean;
}

const NOTHING: Lines = { lines: [], dropped: 0, cursor: null, more: false };

/** The log. It reads when it is opened. */
export function Log({ job }: { job: Job }) {
  const [log, setLog] = useState<Lines>(NOTHING);
  const [attempt, setAttempt] = useState('');
  const [follow, setFollow] = useState(true);
  const [wrong, setWrong] = useState('');
  const latest = useRef(log);
  latest.current = log;
  const end = useRef<HTMLDivElement>(null);
  const running = job.state === 'running' || job.state === 'scheduled';

  const read = async (from: Lines, signal: AbortSignal) => {
    const query = {
      limit: PAGE,
      ...(attempt ? { attempt } : {}),
      ...(from.cursor ? { cursor: from.cursor } : {}),
    };
    const page = await get<LogPage>(path`v1/jobs/${job.type}/${job.id}/log`, query, signal);
    const lines = [...from.lines, ...page.lines].slice(-MOST);
    setLog({
      lines,
      dropped: from.dropped + page.dropped,
      cursor: page.next_cursor ?? null,
      more: page.lines.length === PAGE,
    });
    setWrong('');
    return page.lines.length;
  };
  useEffect(() => {
    const abort = new AbortController();
    const failed = (error: unknown) => {
      if (!abort.signal.aborted) setWrong(message(error));
    };
    setLog(NOTHING);
    read(NOTHING, abort.signal).catch(failed);
    return () => abort.abort();
  }, [job.id, attempt]);
  useEffect(() => {
    if (!follow || !running) return;
    const abort = new AbortController();
    const timer = setInterval(async () => {
      if (!mayUpdate() || !latest.current.cursor) return;
      const added = await read(latest.current, abort.signal).catch(() => 0);
      if (added) end.current?.scrollIntoView({ block: 'nearest' });
    }, FOLLOW_MS);
    return () => {
      abort.abort();
      clearInterval(timer);
    };
  }, [job.id, attempt, follow, running]);

  const attempts = Array.from({ length: job.attempt }, (_, i) => String(i + 1));
  const more = log.more && log.cursor && !(running && follow);
  return (
    <>
      <div class="row">
        {attempts.length > 1 && (
          <SelectField
            label="Attempt"
            value={attempt}
            onInput={setAttempt}
            options={[['', 'all'], ...attempts.map((n): [string, string] => [n, n])]}
          />
        )}
        {running && <CheckField label="Follow" checked={follow} onChange={setFollow} />}
        {log.dropped > 0 && (
          <span class="soft">{count(log.dropped)} older lines are no longer kept.</span>
        )}
      </div>
      {wrong && <p class="failure">{wrong}</p>}
      {!log.lines.length && !wrong && <Empty>No attempt has written a line.</Empty>}
      {log.lines.length > 0 && (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by key
        <div class="log" role="log" aria-label="Log lines" tabIndex={0}>
          {log.lines.map((line) => (
            <Line key={line.number} line={line} />
          ))}
          <div ref={end} />
        </div>
      )}
      {more && (
        <button
          type="button"
          class="small"
          onClick={() =>
            void read(log, new AbortController().signal).catch((e) => setWrong(message(e)))
          }
        >
          Further lines
        </button>
      )}
    </>
  );
}

function Line({ line }: { line: LogLine }) {
  const fields = line.fields && Object.keys(line.fields).length ? JSON.stringify(line.fields) : '';
  return (
    <div class={`line level-${line.level}`}>
      <span class="soft num" title={full(line.time, zone.value)}>
        {full(line.time, zone.value).slice(11, 23)}
      </span>
      <span class="soft">#{line.attempt}</span>
      <span class="level">{line.level}</span>
      <span class="text">
        <bdi>{line.text}</bdi> {fields && <span class="soft">{fields}</span>}
        {line.cut && <span class="soft"> (cut)</span>}
      </span>
    </div>
  );
}
