// One schedule: its rule, its next ten occurrences in both zones, and what became of the latest ten.

import { useState } from 'preact/hooks';
import { path, send } from '../api/client';
import { may } from '../api/session';
import type { Schedule } from '../api/types';
import { duration } from '../jobs/columns';
import { count, span } from '../lib/format';
import { rawField } from '../lib/json';
import { type Past, pastOf } from '../lib/occurrences';
import { href, jobHref } from '../lib/route';
import { ScheduleForm } from '../schedule/form';
import { Instants } from '../schedule/instants';
import { readJobs } from '../schedule/jobs';
import { Picture } from '../schedule/picture';
import { now, useLoad } from '../state/live';
import { go } from '../state/router';
import { Badge, Button, Empty, Facts, Failed, Loading, Section, Time } from '../ui/basics';
import { JsonText } from '../ui/code';
import { Confirm } from '../ui/dialog';
import { Table } from '../ui/table';
import { pauseOrResume, RunDialog, ruleText } from './schedules';

async function past(schedule: Schedule, signal: AbortSignal): Promise<Past[]> {
  return pastOf(schedule, await readJobs([schedule], signal));
}

/** The page. */
export function SchedulePage({ name }: { name: string }) {
  const at = path`v1/schedules/${name}`;
  const load = async (signal: AbortSignal) => {
    const { value, text, etag } = await send<Schedule>('GET', at, { signal });
    return { schedule: value, data: rawField(text, 'data'), etag, past: await past(value, signal) };
  };
  const loaded = useLoad(at, load, {
    on: (change) => change.job?.id.startsWith(`${name}:`) ?? false,
  });
  const [open, setOpen] = useState<'edit' | 'run' | 'delete' | ''>('');
  const { data } = loaded;
  if (!data) {
    return (
      <>
        <h1>
          <bdi>{name}</bdi>
        </h1>
        <Failed error={loaded.error} what="this schedule" />
        {loaded.error ? <a href="#/schedules">All schedules</a> : <Loading />}
      </>
    );
  }
  const { schedule } = data;
  const close = () => setOpen('');
  return (
    <>
      <div class="title">
        <h1>
          <bdi>{name}</bdi>
        </h1>
        {schedule.paused && <Badge word="paused" />}
        <div class="bar">
          {may('enqueue') && (
            <button type="button" onClick={() => setOpen('run')}>
              Run now …
            </button>
          )}
          {may('admin') && (
            <>
              <Button onClick={() => pauseOrResume(schedule, loaded.reload)}>
                {schedule.paused ? 'Resume' : 'Pause'}
              </Button>
              <button type="button" onClick={() => setOpen('edit')}>
                Edit …
              </button>
              <button type="button" class="danger" onClick={() => setOpen('delete')}>
                Delete …
              </button>
            </>
          )}
        </div>
      </div>
      <Failed error={loaded.error} what="this schedule" />
      {schedule.last_error && (
        <p class="failure">The next occurrence has no job yet: {schedule.last_error.message}</p>
      )}
      <div class="columns">
        <Section title="Rule">
          <Facts
            rows={[
              ['rule', <code>{ruleText(schedule)}</code>],
              ['type', <a href={href(['types', schedule.type])}>{schedule.type}</a>],
              ['not before', schedule.starts_at && <Time at={schedule.starts_at} />],
              ['not after', schedule.ends_at && <Time at={schedule.ends_at} />],
              ['missed occurrences', schedule.missed],
              ['missed so far', count(schedule.missed_count)],
              [
                'jobs expire after',
                schedule.expires_after_seconds && span(schedule.expires_after_seconds),
              ],
            ]}
          />
        </Section>
        <Section title="Next ten">
          {schedule.next.length ? (
            <Instants at={schedule.next} />
          ) : (
            <Empty>{schedule.paused ? 'It is paused.' : 'Nothing occurs any more.'}</Empty>
          )}
        </Section>
      </div>
      <Section title="Previous ten" side={data.past.length > 0 && <Picture past={data.past} />}>
        <History rows={data.past} />
      </Section>
      <Section title="Data of its jobs">
        <JsonText raw={data.data ?? 'null'} label="data" />
      </Section>
      {open === 'edit' && (
        <ScheduleForm
          schedule={schedule}
          data={data.data}
          etag={data.etag}
          onClose={close}
          onDone={() => void loaded.reload()}
        />
      )}
      {open === 'run' && (
        <RunDialog schedule={schedule} onClose={close} onDone={() => void loaded.reload()} />
      )}
      {open === 'delete' && (
        <Confirm
          title={`Delete ${name}?`}
          verb="Delete the schedule"
          danger
          onClose={close}
          work={async () => {
            await send('DELETE', at, { etag: data.etag });
            go('#/schedules');
          }}
        >
          <p>Jobs that it has made stay. No further ones are made.</p>
        </Confirm>
      )}
    </>
  );
}

function History({ rows }: { rows: Past[] }) {
  if (!rows.length) return <Empty>It has not occurred yet.</Empty>;
  return (
    <Table<Past>
      caption="Previous occurrences"
      rows={rows}
      id={(row) => row.id}
      columns={[
        { id: 'at', label: 'Occurrence', cell: (row) => <Time at={row.at} /> },
        {
          id: 'job',
          label: 'Job',
          cell: (row) => (row.job ? <a href={jobHref(row.job.type, row.id)}>{row.id}</a> : row.id),
        },
        {
          id: 'outcome',
          label: 'Outcome',
          cell: (row) =>
            row.job ? <Badge word={row.job.phase} /> : <span class="soft">no job is kept</span>,
        },
        {
          id: 'took',
          label: 'Took',
          cell: (row) => (row.job ? span(duration(row.job, now.value)) : '–'),
          number: true,
        },
        { id: 'error', label: 'Error', cell: (row) => row.job?.error?.message ?? '–' },
      ]}
    />
  );
}
