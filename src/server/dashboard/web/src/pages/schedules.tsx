// Schedules: their rules, next and latest occurrences.

import { useState } from 'preact/hooks';
import { all, path, post, send } from '../api/client';
import { may } from '../api/session';
import type { Schedule } from '../api/types';
import { count, instant, span } from '../lib/format';
import { keyed } from '../lib/keys';
import { pastOf } from '../lib/occurrences';
import { href, jobHref } from '../lib/route';
import { ScheduleForm } from '../schedule/form';
import { readJobs } from '../schedule/jobs';
import { Picture } from '../schedule/picture';
import { useLoad } from '../state/live';
import { attempt, notify } from '../state/notices';
import { Badge, Button, Empty, Failed, Loading, Time } from '../ui/basics';
import { Confirm } from '../ui/dialog';
import { type Column, Table } from '../ui/table';

/** The rule of a schedule in words. */
export function ruleText(schedule: Schedule): string {
  return schedule.cron
    ? `${schedule.cron} ${schedule.tz ?? 'UTC'}`
    : `every ${span(schedule.every_seconds)}`;
}

/** Makes a job of a schedule now, after a question. */
export function RunDialog({
  schedule,
  onClose,
  onDone,
}: {
  schedule: Schedule;
  onClose: () => void;
  onDone: () => void;
}) {
  const [keyOf] = useState(keyed);
  const work = async () => {
    await send('POST', path`v1/schedules/${schedule.name}/run`, { key: keyOf(schedule.name) });
    notify('done', `A job of ${schedule.name} is enqueued.`);
    onDone();
  };
  return (
    <Confirm title={`Run ${schedule.name} now?`} verb="Run now" onClose={onClose} work={work}>
      <p>A job of type {schedule.type} is enqueued in addition to the occurrences.</p>
    </Confirm>
  );
}

/** Pauses or resumes a schedule. */
export function pauseOrResume(schedule: Schedule, reload: () => Promise<void>): Promise<boolean> {
  const verb = schedule.paused ? 'resume' : 'pause';
  return attempt(async () => {
    await post(path`v1/schedules/${schedule.name}/${verb}`);
    await reload();
  }, `${schedule.name} is ${verb}d.`);
}

/** Schedules whose previous occurrences are read for a picture, and how often. */
const PICTURES = 30;
const PICTURES_EVERY_MS = 30_000;

/** The page. */
export function SchedulesPage() {
  const { data, error, reload } = useLoad('schedules', () =>
    all<Schedule>('v1/schedules', 'schedules'),
  );
  const read = (signal: AbortSignal) => readJobs((data ?? []).slice(0, PICTURES), signal);
  const jobs = useLoad(`pictures ${data !== null}`, read, { every: PICTURES_EVERY_MS }).data;
  const [create, setCreate] = useState(false);
  const [run, setRun] = useState<Schedule | null>(null);
  const columns: Column<Schedule>[] = [
    {
      id: 'name',
      label: 'Schedule',
      cell: (row) => (
        <a class="id" href={href(['schedules', row.name])}>
          {row.name}
        </a>
      ),
      sort: (row) => row.name,
    },
    {
      id: 'type',
      label: 'Type',
      cell: (row) => <a href={href(['types', row.type])}>{row.type}</a>,
      sort: (row) => row.type,
    },
    { id: 'rule', label: 'Rule', cell: (row) => <code>{ruleText(row)}</code>, sort: ruleText },
    {
      id: 'next',
      label: 'Next',
      cell: (row) => (row.paused ? <Badge word="paused" /> : <Time at={row.next[0]} />),
      sort: (row) => instant(row.next[0]),
    },
    {
      id: 'last',
      label: 'Latest',
      cell: (row) =>
        row.last_job ? (
          <a href={jobHref(row.type, row.last_job)}>
            <Time at={row.last_occurrence} />
          </a>
        ) : (
          <span class="soft">–</span>
        ),
      sort: (row) => instant(row.last_occurrence),
    },
    {
      id: 'previous',
      label: 'Previous ten',
      title: 'How long each took (bars, red: it failed), and how late it began (line)',
      cell: (row) => <Picture past={jobs ? pastOf(row, jobs) : []} />,
    },
    {
      id: 'missed',
      label: 'Missed',
      cell: (row) => count(row.missed_count),
      sort: (row) => row.missed_count,
      number: true,
    },
    {
      id: 'error',
      label: 'Error',
      cell: (row) =>
        row.last_error ? (
          <span class="error-text">{row.last_error.message}</span>
        ) : (
          <span class="soft">–</span>
        ),
    },
    {
      id: 'act',
      label: 'Actions',
      unseen: true,
      cell: (row) => (
        <span class="row">
          {may('enqueue') && (
            <button
              type="button"
              class="small"
              aria-label={`Run now … ${row.name}`}
              onClick={() => setRun(row)}
            >
              Run now …
            </button>
          )}
          {may('admin') && (
            <Button
              kind="small"
              label={`${row.paused ? 'Resume' : 'Pause'} ${row.name}`}
              onClick={() => pauseOrResume(row, reload)}
            >
              {row.paused ? 'Resume' : 'Pause'}
            </Button>
          )}
        </span>
      ),
    },
  ];
  return (
    <>
      <div class="title">
        <h1>Schedules</h1>
        {may('admin') && (
          <button type="button" onClick={() => setCreate(true)}>
            New schedule …
          </button>
        )}
      </div>
      <Failed error={error} what="schedules" />
      {!data && !error && <Loading />}
      {data?.length === 0 && <Empty>There are no schedules.</Empty>}
      {data && data.length > 0 && (
        <Table caption="Schedules" columns={columns} rows={data} id={(row) => row.name} />
      )}
      {create && <ScheduleForm onClose={() => setCreate(false)} onDone={() => void reload()} />}
      {run && (
        <RunDialog schedule={run} onClose={() => setRun(null)} onDone={() => void reload()} />
      )}
    </>
  );
}
