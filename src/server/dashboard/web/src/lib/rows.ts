// Rows of tables: sorting, and what a refresh does to those that are shown.

/** A column by which rows are sorted, and in which direction. */
export interface Sort {
  by: string;
  down: boolean;
}

/** What a row has in a column, for sorting. Rows without a value come last in both directions. */
export type Key = string | number | null | undefined;

/** The rows in the order of a key. Equal ones stay in their order. */
export function sorted<T>(rows: readonly T[], key: (row: T) => Key, down: boolean): T[] {
  return [...rows].sort((a, b) => compare(key(a), key(b), down));
}

function compare(a: Key, b: Key, down: boolean): number {
  const [noA, noB] = [a === null || a === undefined, b === null || b === undefined];
  if (noA || noB) return Number(noA) - Number(noB);
  const order =
    typeof a === 'number' && typeof b === 'number'
      ? a - b
      : String(a).localeCompare(String(b), 'en', { numeric: true });
  return down ? -order : order;
}

/** The next order after a click on a column: down, up, and then the order of the server. */
export function nextSort(sort: Sort | null, by: string): Sort | null {
  if (sort?.by !== by) return { by, down: true };
  return sort.down ? { by, down: false } : null;
}

/**
 * The rows after a refresh: the new ones, and in their places those of `keep` that the refresh lacks.
 * A row that has the focus or is selected must not vanish under the user.
 */
export function merged<T>(
  old: readonly T[],
  now: readonly T[],
  id: (row: T) => string,
  keep: Set<string>,
): T[] {
  const there = new Set(now.map(id));
  const rows = [...now];
  old.forEach((row, at) => {
    if (keep.has(id(row)) && !there.has(id(row))) rows.splice(Math.min(at, rows.length), 0, row);
  });
  return rows;
}
