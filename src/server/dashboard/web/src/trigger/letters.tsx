// Dead letters: events that a trigger could not handle.

import { useState } from 'preact/hooks';
import { get, path, post, send } from '../api/client';
import { may } from '../api/session';
import type { DeadLetter } from '../api/types';
import { instant, plural } from '../lib/format';
import { href } from '../lib/route';
import { useLoad } from '../state/live';
import { attempt, notify } from '../state/notices';
import { Button, Empty, Failed, Time } from '../ui/basics';
import { JsonValue } from '../ui/code';
import { Confirm } from '../ui/dialog';
import { type Column, Table } from '../ui/table';

const SHOWN = 100;
/** Calls of a replay of many, 100 letters each. */
const CALLS = 100;

interface Page {
  dead_letters: DeadLetter[];
  next_cursor?: string | null;
}

/** The type of a letter's event. Its event is any value. */
function eventType(letter: DeadLetter): string {
  const event: unknown = letter.event;
  const type = typeof event === 'object' && event !== null && 'type' in event ? event.type : '';
  return typeof type === 'string' ? type : '';
}

/** The letters of a trigger, or of all. */
export function DeadLetters({ trigger = '' }: { trigger?: string }) {
  const { data, error, reload } = useLoad(
    `letters ${trigger}`,
    async (signal) => {
      const page = await get<Page>('v1/dead-letters', { trigger, limit: SHOWN }, signal);
      return { letters: page.dead_letters, more: Boolean(page.next_cursor) };
    },
    { every: 10_000 },
  );
  const [every, setEvery] = useState(false);
  const [gone, setGone] = useState<DeadLetter | null>(null);
  const replay = (letter: DeadLetter) =>
    attempt(async () => {
      const { action } = await post<{ action: string }>(path`v1/dead-letters/${letter.id}/replay`);
      notify(
        action === 'dead_lettered' ? 'error' : 'done',
        `The trigger answered: ${action.replace(/_/g, ' ')}.`,
      );
      await reload();
    });
  const letters = data?.letters ?? [];
  const columns: Column<DeadLetter>[] = [
    {
      id: 'at',
      label: 'Failed',
      cell: (row) => <Time at={row.failed_at} />,
      sort: (row) => instant(row.failed_at),
    },
    {
      id: 'trigger',
      label: 'Trigger',
      cell: (row) =>
        row.trigger ? <a href={href(['triggers', row.trigger])}>{row.trigger}</a> : '–',
      sort: (row) => row.trigger,
    },
    { id: 'type', label: 'Event', cell: (row) => <bdi>{eventType(row)}</bdi>, sort: eventType },
    {
      id: 'reason',
      label: 'Reason',
      cell: (row) => (
        <span class="error-text">
          <bdi>{row.reason}</bdi>
        </span>
      ),
      sort: (row) => row.reason,
    },
    {
      id: 'event',
      label: 'Event',
      unseen: true,
      cell: (row) => (
        <details>
          <summary>The event</summary>
          <JsonValue value={row.event} label="event" />
        </details>
      ),
    },
    {
      id: 'act',
      label: 'Actions',
      unseen: true,
      cell: (row) =>
        may('admin') && (
          <span class="row">
            <Button kind="small" onClick={() => replay(row)}>
              Replay
            </Button>
            <button type="button" class="small quiet" onClick={() => setGone(row)}>
              Delete …
            </button>
          </span>
        ),
    },
  ];
  return (
    <>
      <Failed error={error} what="dead letters" />
      {data && !letters.length && <Empty>There are no dead letters.</Empty>}
      {letters.length > 0 && (
        <>
          {may('admin') && (
            <div class="bar">
              <button type="button" onClick={() => setEvery(true)}>
                Replay all …
              </button>
            </div>
          )}
          <Table caption="Dead letters" columns={columns} rows={letters} id={(row) => row.id} />
          {data?.more && <p class="soft">The first {SHOWN}. There are more.</p>}
        </>
      )}
      {gone && (
        <Confirm
          title="Delete this dead letter?"
          verb="Delete the dead letter"
          danger
          onClose={() => setGone(null)}
          work={async () => {
            await send('DELETE', path`v1/dead-letters/${gone.id}`);
            await reload();
          }}
        >
          <p>
            Its event of type <bdi>{eventType(gone)}</bdi> is lost. This cannot be undone.
          </p>
        </Confirm>
      )}
      {every && (
        <Confirm
          title="Replay all dead letters?"
          verb={`Replay ${data?.more ? 'all' : plural(letters.length, 'dead letter')}`}
          onClose={() => setEvery(false)}
          work={() => replayAll(trigger).then(reload)}
        >
          <p>
            Each trigger is applied in its present form. What it handles, or no longer matches, is
            deleted.
          </p>
        </Confirm>
      )}
    </>
  );
}

async function replayAll(trigger: string): Promise<void> {
  let [replayed, remaining, cursor] = [0, 0, ''];
  for (let call = 0; call < CALLS; call++) {
    const body = { ...(trigger ? { trigger } : {}), ...(cursor ? { cursor } : {}) };
    const answer = await post<{ replayed: number; remaining: number; next_cursor?: string | null }>(
      'v1/dead-letters/replay',
      body,
    );
    replayed += answer.replayed;
    remaining += answer.remaining;
    cursor = answer.next_cursor ?? '';
    if (!cursor) break;
  }
  notify(
    remaining ? 'error' : 'done',
    `${plural(replayed, 'dead letter')} replayed, ${remaining} remain.`,
  );
}
