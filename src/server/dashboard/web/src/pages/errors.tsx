// Errors in groups: one click leads to the jobs, another retries them.

import { useState } from 'preact/hooks';
import { get, serverNow } from '../api/client';
import { may, serverless } from '../api/session';
import type { ErrorGroup, ErrorPage } from '../api/types';
import { BulkDialog } from '../jobs/bulk';
import { cut } from '../jobs/columns';
import { body, type FilterBody, resolve } from '../lib/filter';
import { count, instant, plural } from '../lib/format';
import { href, jobHref } from '../lib/route';
import { useLoad } from '../state/live';
import { useNames } from '../state/names';
import { go, route } from '../state/router';
import { Badge, Empty, Failed, Loading, Time } from '../ui/basics';
import { SelectField } from '../ui/fields';
import { type Column, Table } from '../ui/table';

const SINCE: [string, string][] = [
  ['-1h', 'the last hour'],
  ['-24h', 'the last day'],
  ['-7d', 'the last week'],
  ['', 'all that are kept'],
];
/** Pages whose groups are added up at once. */
const PAGES = 5;
const EVERY_MS = 10_000;

const keyOf = (group: ErrorGroup): string => `${group.type} ${group.reason} ${group.pattern}`;

/** Groups of several pages, added up; those with most jobs first. */
export function addUp(groups: ErrorGroup[]): ErrorGroup[] {
  const sums = new Map<string, ErrorGroup>();
  for (const group of groups) {
    const old = sums.get(keyOf(group));
    if (!old) sums.set(keyOf(group), group);
    else {
      const [first_at = old.first_at] = [old.first_at, group.first_at].sort();
      const [, last_at = old.last_at] = [old.last_at, group.last_at].sort();
      sums.set(keyOf(group), { ...old, jobs: old.jobs + group.jobs, first_at, last_at });
    }
  }
  return [...sums.values()].sort((a, b) => b.jobs - a.jobs);
}

/** What was counted: `more` is whether the counting goes on, or stopped before the end. */
interface Found {
  groups: ErrorGroup[];
  ungrouped: number;
  more: '' | 'now' | 'later';
}

/** The conditions under which a group's jobs are found, without a time. */
function conditions(group: ErrorGroup, queue: string): Record<string, string> {
  return {
    type: group.type,
    ...(queue ? { queue } : {}),
    error_reason: group.reason,
    ...(group.pattern ? { error_pattern: group.pattern } : {}),
  };
}

/** The list of a group's jobs. A job that reached its deadline may never have started. */
function listOf(group: ErrorGroup, queue: string, since: string): string {
  const time = since && group.reason !== 'deadline' ? { started_from: since } : {};
  return href(['jobs'], { ...conditions(group, queue), phase: 'failed,retrying', ...time });
}

/** The failed jobs of a group, which can be replayed. */
function failedOf(group: ErrorGroup, queue: string, since: string): FilterBody {
  const query = {
    ...conditions(group, queue),
    phase: 'failed',
    ...(since ? { ended_from: since } : {}),
  };
  return body(new URLSearchParams(query), serverNow());
}

/** The page. */
export function ErrorsPage() {
  const query = route.value?.query ?? new URLSearchParams();
  const since = query.get('from') ?? '-24h';
  const queue = query.get('queue') ?? '';
  const type = query.get('type') ?? '';
  const names = useNames().data;
  const [retry, setRetry] = useState<{ filter: FilterBody; which: string } | null>(null);
  const load = async (signal: AbortSignal, partly: (found: Found) => void): Promise<Found> => {
    const groups: ErrorGroup[] = [];
    let [ungrouped, cursor] = [0, ''];
    for (let page = 0; page < (serverless.value ? 1 : PAGES); page++) {
      const from = since && since !== 'all' ? resolve(since, serverNow()) : '';
      const answer = await get<ErrorPage>('v1/errors', { from, queue, type, cursor }, signal);
      groups.push(...answer.errors);
      ungrouped += answer.ungrouped;
      cursor = answer.next_cursor ?? '';
      if (!cursor) break;
      partly({ groups: addUp(groups), ungrouped, more: 'now' });
    }
    return { groups: addUp(groups), ungrouped, more: cursor ? 'later' : '' };
  };
  const { data, error, reload } = useLoad(`errors ${since} ${queue} ${type}`, load, {
    on: (change) => Boolean(change.job?.error_reason),
    every: EVERY_MS,
  });
  const set = (part: Record<string, string>) =>
    go(href(['errors'], { from: since, queue, type, ...part }), true);
  const span = since === 'all' ? '' : since;
  const columns: Column<ErrorGroup>[] = [
    {
      id: 'message',
      label: 'Error',
      cell: (group) => (
        <a class="error-link" href={listOf(group, queue, span)}>
          <Badge word={group.reason} tone="failed" />{' '}
          <bdi>{cut(group.pattern || 'without a message', 300)}</bdi>
        </a>
      ),
      sort: (group) => group.pattern,
    },
    {
      id: 'type',
      label: 'Type',
      cell: (group) => <a href={href(['types', group.type])}>{group.type}</a>,
      sort: (group) => group.type,
    },
    {
      id: 'jobs',
      label: 'Jobs',
      cell: (group) => count(group.jobs),
      sort: (group) => group.jobs,
      number: true,
    },
    {
      id: 'first',
      label: 'First',
      cell: (group) => <Time at={group.first_at} />,
      sort: (group) => instant(group.first_at),
    },
    {
      id: 'last',
      label: 'Latest',
      cell: (group) => <Time at={group.last_at} />,
      sort: (group) => instant(group.last_at),
    },
    {
      id: 'examples',
      label: 'Such as',
      cell: (group) => (
        <span class="examples">
          {group.examples.slice(0, 2).map((id) => (
            <a key={id} class="short" title={id} href={jobHref(group.type, id)}>
              {id}
            </a>
          ))}
        </span>
      ),
    },
    {
      id: 'act',
      label: 'Actions',
      unseen: true,
      cell: (group) =>
        may('admin') && (
          <button
            type="button"
            class="small"
            onClick={() => {
              setRetry({
                filter: failedOf(group, queue, span),
                which: `failed jobs of ${group.type} with this error`,
              });
            }}
          >
            Retry all …
          </button>
        ),
    },
  ];
  return (
    <>
      <div class="title">
        <h1>Errors</h1>
      </div>
      <div class="row">
        <SelectField
          label="Errors of"
          value={since === 'all' ? '' : since}
          options={SINCE}
          onInput={(from) => set({ from: from || 'all' })}
        />
        <SelectField
          label="Queue"
          value={queue}
          options={[
            ['', 'every queue'],
            ...(names?.queues ?? []).map((name): [string, string] => [name, name]),
          ]}
          onInput={(value) => set({ queue: value })}
        />
        <SelectField
          label="Type"
          value={type}
          options={[
            ['', 'every type'],
            ...(names?.types ?? []).map((name): [string, string] => [name, name]),
          ]}
          onInput={(value) => set({ type: value })}
        />
      </div>
      <Failed error={error} what="errors" />
      {!data && !error && <Loading />}
      {data?.groups.length === 0 && data.more !== 'now' && (
        <Empty>No job that failed or waits for a retry has an error of this time.</Empty>
      )}
      {data && data.groups.length > 0 && (
        <Table caption="Errors" columns={columns} rows={data.groups} id={keyOf} />
      )}
      {data && data.ungrouped > 0 && (
        <p class="soft">{plural(data.ungrouped, 'job')} with rarer errors are in no group.</p>
      )}
      {data?.more === 'now' && <Loading />}
      {data?.more === 'later' && (
        <p class="soft">
          Not every job was counted: there are more than the server counts at once.
        </p>
      )}
      {retry && (
        <BulkDialog
          verb="replay"
          {...retry}
          onClose={() => setRetry(null)}
          onDone={() => void reload()}
        />
      )}
    </>
  );
}
