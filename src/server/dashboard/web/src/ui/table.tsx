// Tables: keyed rows that are updated in place, sorting, selection; cards on a phone.

import type { ComponentChildren } from 'preact';
import { useState } from 'preact/hooks';
import { type Key, nextSort, type Sort, sorted } from '../lib/rows';

/** A column. */
export interface Column<T> {
  id: string;
  label: string;
  cell: (row: T) => ComponentChildren;
  /** What the rows are sorted by; without it the column does not sort. */
  sort?: (row: T) => Key;
  /** The server sorts all rows by this field, where the table has an order. */
  field?: string;
  /** Numbers are aligned to the right. */
  number?: boolean;
  /** The heading is for screen readers only: what is in the cells names itself. */
  unseen?: boolean;
  /** A note on the heading. */
  title?: string;
}

/** The selected rows, by their ids. */
export interface Selection {
  ids: Set<string>;
  onChange: (ids: Set<string>) => void;
}

/** What a table needs. */
export interface TableProps<T> {
  /** What the rows are, for screen readers. */
  caption: string;
  columns: Column<T>[];
  rows: readonly T[];
  id: (row: T) => string;
  selection?: Selection;
  rowClass?: (row: T) => string;
  /** Cells are close to each other in a small window. */
  dense?: boolean;
  /** The order at first. */
  sort?: Sort;
  /** The order of the server: a field, after `-` if the largest is first; null if it has its own. */
  order?: { field: string | null; onChange: (field: string | null) => void };
}

/** A table whose columns sort the rows that are shown, or all rows where the server can. */
export function Table<T>({
  caption,
  columns,
  rows,
  id,
  selection,
  rowClass,
  dense,
  sort: first,
  order,
}: TableProps<T>) {
  const [local, setLocal] = useState<Sort | null>(first ?? null);
  const sort = local ?? sortOf(columns, order?.field);
  const by = columns.find((column) => column.id === local?.by)?.sort;
  const shown = by && local ? sorted(rows, by, local.down) : rows;
  const setSort = (next: Sort | null) => {
    const field = next && columns.find((column) => column.id === next.by)?.field;
    if (order && next && field) {
      setLocal(null);
      order.onChange(next.down ? `-${field}` : field);
    } else if (next || local || !order) setLocal(next);
    else order.onChange(null);
  };
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a table that scrolls must be reachable by key
    // biome-ignore lint/a11y/useSemanticElements: a fieldset is for controls
    <div class={dense ? 'table dense' : 'table'} role="group" aria-label={caption} tabIndex={0}>
      <Narrow
        columns={columns}
        sort={sort}
        onSort={setSort}
        ids={shown.map(id)}
        selection={selection}
      />
      <table>
        <thead>
          <tr>
            {selection && <SelectAll ids={shown.map(id)} selection={selection} />}
            {columns.map((column) => (
              <Heading key={column.id} column={column} sort={sort} onSort={setSort} />
            ))}
          </tr>
        </thead>
        <tbody>
          {shown.map((row) => {
            const key = id(row);
            return (
              <tr
                key={key}
                data-row={key}
                class={`${rowClass?.(row) ?? ''}${selection?.ids.has(key) ? ' selected' : ''}`}
              >
                {selection && <Select id={key} selection={selection} />}
                {columns.map((column) => (
                  <td
                    key={column.id}
                    data-label={column.unseen ? '' : column.label}
                    class={column.number ? 'num' : ''}
                  >
                    <div class="cell">{column.cell(row)}</div>
                  </td>
                ))}
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

/** The column that shows an order of the server; null if none does. */
function sortOf<T>(columns: Column<T>[], field: string | null | undefined): Sort | null {
  const down = field?.startsWith('-') ?? false;
  const column = columns.find((one) => one.field && one.field === field?.replace(/^-/, ''));
  return column ? { by: column.id, down } : null;
}

/** What the headings do, on a screen that is too narrow for them. */
function Narrow<T>(props: {
  columns: Column<T>[];
  sort: Sort | null;
  onSort: (sort: Sort | null) => void;
  ids: string[];
  selection: Selection | undefined;
}) {
  const { columns, sort, onSort, selection, ids } = props;
  const sortable = columns.filter((column) => column.sort);
  const every = ids.length > 0 && ids.every((id) => selection?.ids.has(id));
  if (ids.length < 2) return null;
  const choose = (value: string) => {
    const [by = '', order] = value.split(' ');
    onSort(by ? { by, down: order === 'down' } : null);
  };
  return (
    <div class="narrow">
      {sortable.length > 0 && (
        <label>
          Sort{' '}
          <select
            value={sort ? `${sort.by} ${sort.down ? 'down' : 'up'}` : ''}
            onChange={(event) => choose(event.currentTarget.value)}
          >
            <option value="">as listed</option>
            {sortable.flatMap(({ id, label }) => [
              <option key={`${id} down`} value={`${id} down`}>{`${label} ▾`}</option>,
              <option key={`${id} up`} value={`${id} up`}>{`${label} ▴`}</option>,
            ])}
          </select>
        </label>
      )}
      {selection && (
        <button
          type="button"
          class="small"
          onClick={() => selection.onChange(new Set(every ? [] : ids))}
        >
          {every ? 'Select none' : 'Select all shown'}
        </button>
      )}
    </div>
  );
}

function Heading<T>(props: {
  column: Column<T>;
  sort: Sort | null;
  onSort: (sort: Sort | null) => void;
}) {
  const { column, sort, onSort } = props;
  const order = sort?.by === column.id ? (sort.down ? 'descending' : 'ascending') : undefined;
  return (
    <th scope="col" class={column.number ? 'num' : ''} aria-sort={order} title={column.title}>
      {column.sort ? (
        <button type="button" class="heading" onClick={() => onSort(nextSort(sort, column.id))}>
          {column.label}
          <span aria-hidden="true" class="order">
            {order === 'descending' ? '▾' : order === 'ascending' ? '▴' : ''}
          </span>
        </button>
      ) : (
        <span class={column.unseen ? 'unseen' : ''}>{column.label}</span>
      )}
    </th>
  );
}

function SelectAll({ ids, selection }: { ids: string[]; selection: Selection }) {
  const every = ids.length > 0 && ids.every((id) => selection.ids.has(id));
  return (
    <th scope="col" class="pick">
      <label>
        <input
          type="checkbox"
          aria-label="Select all rows shown"
          checked={every}
          onChange={() => selection.onChange(new Set(every ? [] : ids))}
        />
      </label>
    </th>
  );
}

function Select({ id, selection }: { id: string; selection: Selection }) {
  const toggle = () => {
    const ids = new Set(selection.ids);
    if (!ids.delete(id)) ids.add(id);
    selection.onChange(ids);
  };
  return (
    <td class="pick">
      <label>
        <input
          type="checkbox"
          aria-label={`Select ${id}`}
          checked={selection.ids.has(id)}
          onChange={toggle}
        />
      </label>
    </td>
  );
}
