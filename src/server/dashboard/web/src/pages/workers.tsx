// Pull workers: what each runs, how much it can, when it was last heard; draining, stopping.

import { useState } from 'preact/hooks';
import { all, get, optional, path, post, send } from '../api/client';
import { may, serverless } from '../api/session';
import type { Job, JobPage, Worker } from '../api/types';
import { count, instant, plural } from '../lib/format';
import { href, jobHref } from '../lib/route';
import { WorkerHistorySection } from '../queue/history';
import { now, useLoad } from '../state/live';
import { attempt } from '../state/notices';
import { route } from '../state/router';
import { Badge, Button, Empty, Failed, Loading, Time } from '../ui/basics';
import { Confirm } from '../ui/dialog';
import { type Column, Table } from '../ui/table';

/** Running jobs whose workers are shown. */
const RUNNING = 1000;
/** A worker that has not called for so long, and runs nothing, is called silent. */
const SILENT_MS = 60_000;
const LISTED = 5;

interface Row extends Worker {
  jobs: Job[];
}

async function read(signal: AbortSignal): Promise<Row[]> {
  const [workers, running] = await Promise.all([
    all<Worker>('v1/workers', 'workers'),
    optional(get<JobPage>('v1/jobs', { phase: 'running', limit: RUNNING }, signal)),
  ]);
  return workers.map((worker) => ({
    ...worker,
    jobs: (running?.jobs ?? []).filter((job) => job.running?.worker === worker.name),
  }));
}

/** Whether a worker may be gone. */
function isSilent(worker: Worker, at: number): boolean {
  return !worker.running && at - (instant(worker.seen_at) ?? 0) > SILENT_MS;
}

/** What a worker does, in a word. */
export function stateOf(worker: Worker, at: number): string {
  if (worker.stopping) return 'stopping';
  if (worker.draining) return worker.running ? 'draining' : 'drained';
  if (worker.running) return 'working';
  return isSilent(worker, at) ? 'silent' : 'waiting';
}

/** The page. */
export function WorkersPage() {
  const { data, error, reload } = useLoad('workers', read, {
    on: (change) => change.kind === 'worker' || change.kind === 'job',
  });
  const [drain, setDrain] = useState<Row | null>(null);
  const [stop, setStop] = useState<Row | null>(null);
  const rows = data ?? [];
  const undrain = (worker: Row) =>
    attempt(async () => {
      await post(path`v1/workers/${worker.name}/undrain`);
      await reload();
    }, `${worker.name} gets jobs again.`);
  const remove = (worker: Row) =>
    attempt(async () => {
      await send('DELETE', path`v1/workers/${worker.name}`);
      await reload();
    }, `${worker.name} is removed from the list.`);
  const charted = route.value?.query.get('worker') ?? '';
  const actions = (row: Row) => (
    <>
      {row.draining ? (
        <Button kind="small" onClick={() => undrain(row)} label={`Undrain ${row.name}`}>
          Undrain
        </Button>
      ) : (
        <button
          type="button"
          class="small"
          aria-label={`Drain ${row.name}`}
          onClick={() => setDrain(row)}
        >
          Drain …
        </button>
      )}
      {!row.stopping && (
        <button
          type="button"
          class="small danger"
          aria-label={`Stop ${row.name}`}
          onClick={() => setStop(row)}
        >
          Stop …
        </button>
      )}
      {isSilent(row, now.value) && (
        <Button kind="small" onClick={() => remove(row)} label={`Remove ${row.name}`}>
          Remove
        </Button>
      )}
    </>
  );
  const columns: Column<Row>[] = [
    {
      id: 'name',
      label: 'Worker',
      title: 'tidegate work names itself by its host and its process',
      cell: (row) => (
        <a href={href(['jobs'], { worker: row.name })}>
          <bdi>{row.name}</bdi>
        </a>
      ),
      sort: (row) => row.name,
    },
    {
      id: 'state',
      label: 'State',
      cell: (row) => <Badge word={stateOf(row, now.value)} />,
      sort: (row) => stateOf(row, now.value),
    },
    {
      id: 'running',
      label: 'Runs',
      cell: (row) =>
        `${count(row.running)}${typeof row.capacity === 'number' ? ` of ${count(row.capacity)}` : ''}`,
      sort: (row) => row.running,
      number: true,
    },
    { id: 'jobs', label: 'Jobs', cell: (row) => <Jobs row={row} /> },
    { id: 'types', label: 'Types', cell: (row) => typesOf(row).join(', ') || '–' },
    {
      id: 'seen',
      label: 'Last heard',
      cell: (row) => <Time at={row.seen_at} only="relative" />,
      sort: (row) => instant(row.seen_at),
    },
    {
      id: 'act',
      label: 'Actions',
      unseen: true,
      cell: (row) => (
        <span class="row">
          {!serverless.value && (
            <a
              href={href(['workers'], row.name === charted ? {} : { worker: row.name })}
              aria-label={`${row.name === charted ? 'Close charts' : 'Charts'} of ${row.name}`}
            >
              {row.name === charted ? 'Close charts' : 'Charts'}
            </a>
          )}
          {may('work') && actions(row)}
        </span>
      ),
    },
  ];
  return (
    <>
      <div class="title">
        <h1>Workers</h1>
      </div>
      <Failed error={error} what="workers" />
      {!data && !error && <Loading />}
      {data && rows.length === 0 && (
        <Empty>
          No pull worker has called within ten minutes. Jobs of types with a target are pushed and
          need none.
        </Empty>
      )}
      {charted && !serverless.value && <WorkerHistorySection key={charted} name={charted} />}
      {rows.length > 0 && (
        <>
          <p class="soft">
            {plural(rows.length, 'worker')},{' '}
            {plural(
              rows.reduce((sum, row) => sum + row.running, 0),
              'job',
            )}{' '}
            running at them.
          </p>
          <Table caption="Workers" columns={columns} rows={rows} id={(row) => row.name} />
        </>
      )}
      {drain && (
        <Confirm
          title={`Drain ${drain.name}?`}
          verb="Drain"
          onClose={() => setDrain(null)}
          work={async () => {
            await post(path`v1/workers/${drain.name}/drain`);
            await reload();
          }}
        >
          <p>
            It finishes the {plural(drain.running, 'job')} that it runs and gets no more, even after
            a restart, until it is undrained.
          </p>
        </Confirm>
      )}
      {stop && (
        <Confirm
          title={`Stop ${stop.name}?`}
          verb="Stop the worker"
          danger
          onClose={() => setStop(null)}
          work={async () => {
            await post(path`v1/workers/${stop.name}/stop`);
            await reload();
          }}
        >
          <p>
            It finishes the {plural(stop.running, 'job')} that it runs and gets no more. Then its
            process ends. What started the process may start it again.
          </p>
        </Confirm>
      )}
    </>
  );
}

/** The types that a worker registered, else those of what it runs. */
function typesOf(row: Row): string[] {
  if (row.types?.length) return row.types;
  if (row.queue) return [`queue ${row.queue}`];
  return [...new Set(row.jobs.map((job) => job.type))];
}

function Jobs({ row }: { row: Row }) {
  if (!row.jobs.length) return <span class="soft">–</span>;
  return (
    <span class="examples">
      {row.jobs.slice(0, LISTED).map((job) => (
        <a key={job.id} class="short" title={job.id} href={jobHref(job.type, job.id)}>
          {job.id}
        </a>
      ))}
      {row.jobs.length > LISTED && <span class="soft">and {row.jobs.length - LISTED} more</span>}
    </span>
  );
}
