// The list of jobs: filter, tabs with counts, saved views, columns, selection and bulk actions.

import { useRef, useState } from 'preact/hooks';
import { serverNow } from '../api/client';
import { may, serverless } from '../api/session';
import type { Job } from '../api/types';
import { BulkDialog, type Verb } from '../jobs/bulk';
import { columnsOf } from '../jobs/columns';
import { EnqueueDialog } from '../jobs/enqueue';
import { FilterForm } from '../jobs/filter-form';
import { readCounts, readJobs } from '../jobs/list';
import { Actions, Chips, ColumnChoice, Pages, Tabs, without } from '../jobs/parts';
import { Views } from '../jobs/views';
import { body, conditions, type FilterBody, narrower } from '../lib/filter';
import { plural } from '../lib/format';
import { href } from '../lib/route';
import { useLoad, useStreamFilter } from '../state/live';
import { columns, pageSize } from '../state/prefs';
import { go, route } from '../state/router';
import { Empty, Failed, Loading } from '../ui/basics';
import { Table } from '../ui/table';

const SORTED_MS = 10_000;
const COUNTS_MS = 5000;
/** Counting under a filter takes a read for each phase. */
const COUNTED_MS = 30_000;

/** On a phone the filter is closed at first. */
const WIDE = matchMedia('(min-width: 801px)').matches;

/** The page. */
export function JobsPage() {
  const query = route.value?.query ?? new URLSearchParams();
  const [selected, setSelected] = useState<Set<string>>(new Set());
  const [bulk, setBulk] = useState<{ verb: Verb; filter: FilterBody; which: string } | null>(null);
  const [enqueue, setEnqueue] = useState(false);
  const shown = useRef<Job[]>([]);
  useStreamFilter(query.get('queue') ?? undefined);

  const filterKey = conditions(query).toString();
  const jobs = useLoad(
    `${pageSize.value} ${query}`,
    async (signal) => {
      const page = await readJobs(query, signal, shown.current, kept(selected));
      shown.current = page.jobs;
      return page;
    },
    {
      on: (change) => change.kind === 'job' || change.kind === 'removed',
      // Each page of a sorted list reads all that it compares.
      ...(query.has('sort') ? { gap: SORTED_MS, every: serverless.value ? 0 : SORTED_MS } : {}),
    },
  );
  const counts = useLoad(
    `counts ${without(query, 'phase', 'cursor', 'sort')}`,
    (signal) => readCounts(query, signal, serverless.value),
    { every: narrower(query, ['queue', 'phase']) ? COUNTED_MS : COUNTS_MS },
  );
  const rows = jobs.data?.jobs ?? [];
  const apply = (next: URLSearchParams) => {
    setSelected(new Set());
    go(href(['jobs'], next));
  };
  const onOrder = (field: string | null) => {
    const next = without(query, 'sort', 'cursor');
    if (field) next.set('sort', field);
    go(href(['jobs'], next));
  };
  const onBulk = (verb: Verb) => {
    const ids = [...selected];
    const which = ids.length
      ? `${plural(ids.length, 'selected job')}`
      : filterKey
        ? 'all that the filter matches'
        : 'all jobs';
    setBulk({ verb, which, filter: ids.length ? { id: ids } : body(query, serverNow()) });
  };
  return (
    <>
      <div class="title">
        <h1>Jobs</h1>
        <Views query={query} onApply={apply} />
        {may('enqueue') && (
          <button type="button" onClick={() => setEnqueue(true)}>
            Enqueue
          </button>
        )}
      </div>
      <details class="panel filters" open={WIDE}>
        <summary>Filter</summary>
        <FilterForm
          query={query}
          attributes={[...new Set(rows.flatMap((job) => Object.keys(job.attributes)))]}
          onApply={apply}
        />
      </details>
      <Chips query={query} />
      <Tabs query={query} counts={counts.data} />
      <div class="bar">
        {may('admin') && (
          <Actions selected={selected.size} onVerb={onBulk} onNone={() => setSelected(new Set())} />
        )}
        <ColumnChoice />
      </div>
      <Failed error={jobs.error} what="jobs" />
      {!jobs.data && !jobs.error && <Loading />}
      {jobs.data && rows.length === 0 && (
        <Empty>
          {jobs.data.next_cursor
            ? 'No match so far. The next page goes on.'
            : filterKey
              ? 'No job matches.'
              : 'There are no jobs yet.'}
        </Empty>
      )}
      {rows.length > 0 && (
        <Table
          caption="Jobs"
          dense
          columns={columnsOf(columns.value, query.get('phase') ?? '')}
          rows={rows}
          id={(job) => job.id}
          order={{ field: query.get('sort'), onChange: onOrder }}
          {...(may('admin') ? { selection: { ids: selected, onChange: setSelected } } : {})}
        />
      )}
      <Pages
        query={query}
        next={jobs.data?.next_cursor ?? null}
        rows={rows.length}
        unreadable={jobs.data?.unreadable ?? []}
        sorted={jobs.data?.sorted}
      />
      {bulk && (
        <BulkDialog
          {...bulk}
          onClose={() => setBulk(null)}
          onDone={() => void Promise.all([jobs.reload(), counts.reload()])}
        />
      )}
      {enqueue && (
        <EnqueueDialog type={query.get('type') ?? ''} onClose={() => setEnqueue(false)} />
      )}
    </>
  );
}

/** The selected rows and the one with the focus: a refresh must not take them away. */
function kept(selected: Set<string>): Set<string> {
  const row = document.activeElement?.closest<HTMLElement>('[data-row]')?.dataset.row;
  return row ? new Set([...selected, row]) : selected;
}
