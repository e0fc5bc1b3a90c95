import { session } from '../api/session';
import type { Job } from '../api/types';
import { duration } from '../jobs/columns';
import { span } from '../lib/format';
import { type OriginLink, origin, traceUrl } from '../lib/links';
import { href, jobHref, queueHref } from '../lib/route';
import { now } from '../state/live';
import { Facts, Time } from '../ui/basics';
import { windowText } from '../ui/windows';

/** The fields. */
export function About({ job }: { job: Job }) {
  const other = (id: string | null | undefined) => id && <a href={jobHref(job.type, id)}>{id}</a>;
  const from = origin(job);
  const trace = traceUrl(session.value?.console?.trace_url, job);
  const rows: [string, preact.ComponentChildren][] = [
    ['type', <a href={href(['types', job.type])}>{job.type}</a>],
    ['queue', <a href={queueHref(job.queue)}>{job.queue}</a>],
    [
      'attempts',
      `${job.attempt} of ${job.max_attempts}${job.handed_back ? `, ${job.handed_back} handed back` : ''}`,
    ],
    ['took', job.started_at && span(duration(job, now.value))],
    ['priority', String(job.priority)],
    ['weight', `${job.weight}${job.critical ? ', critical' : ''}`],
    ['created', <Time at={job.created_at} />],
    ['first due', <Time at={job.due_at} />],
    ['due', job.run_at !== job.due_at && <Time at={job.run_at} />],
    ['started', job.started_at && <Time at={job.started_at} />],
    ['ended', job.ended_at && <Time at={job.ended_at} />],
    ['expires', job.expires_at && <Time at={job.expires_at} />],
    ['deadline', job.deadline_at && <Time at={job.deadline_at} />],
    [
      'worker',
      job.running?.worker && (
        <a href={href(['jobs'], { worker: job.running.worker })}>{job.running.worker}</a>
      ),
    ],
    ['lease until', job.running && <Time at={job.running.lease_expires_at} />],
    ['cancel', job.running?.cancel && 'requested; the worker sees it at its next heartbeat'],
    ...Object.entries(job.attributes).map(([name, value]): [string, preact.ComponentChildren] => [
      name,
      <a href={href(['jobs'], { [`attribute[${name}]`]: String(value) })}>
        <bdi>{String(value)}</bdi>
      </a>,
    ]),
    ['correlation key', job.correlation_key && <bdi>{job.correlation_key}</bdi>],
    ['replay of', other(job.replay_of)],
    ['replayed by', other(job.replayed_by)],
    [from?.label ?? 'schedule', from && <MadeBy from={from} />],
    ['event', from?.event && <bdi>{from.event}</bdi>],
    [
      'trace',
      trace && (
        <a href={trace} rel="noreferrer">
          {'Open the trace'}
        </a>
      ),
    ],
    ['enqueued by', job.enqueued_by],
    ['unique key', job.unique && <bdi>{job.unique.key}</bdi>],
    ['windows', job.windows?.length ? job.windows.map(windowText).join('; ') : null],
    ['timeout', span(job.timeout_seconds)],
    ['callback', job.callback_url],
  ];
  return <Facts rows={rows} />;
}

/** What made the job, and the occurrence of a schedule. */
function MadeBy({ from }: { from: OriginLink }) {
  const link = <a href={from.href}>{from.name}</a>;
  if (from.label === 'trigger') return link;
  return (
    <>
      {link}
      {from.at ? ', ' : ', on request'}
      {from.at && <Time at={from.at} />}
    </>
  );
}
