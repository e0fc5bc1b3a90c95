//! Parts of the statements of a group: text with its parameters as arguments, such as `"$1"`. So a part is
//! the same in a statement of its own and in [`super::single`].
//!
//! While an old transaction is open, an index keeps an entry of each row that was deleted or replaced, such
//! as the ledger and the batch of each tick. Only all columns of a key together lead past those of other
//! rows. Conditions `= ANY` of arrays do not: before Postgres 17, the planner bounds the index by the first
//! one, and filters by the others. So two forms are used for keys of several columns:
//!
//! - A read, such as [`required`], has a lateral subquery. Its lock, or `OFFSET 0`, keeps the planner from
//!   making a join of it.
//! - A write, such as [`set_heads`] and [`delete_batches`], compares each row with its element in a form that
//!   no hash join can have: `= ANY` of an array of one element, and `BETWEEN` twice the same.
//!
//! What remains is a nested loop that looks up each row by all columns, in the order of the array, whatever
//! the statistics are.

/// Fails unless `$n` rows were written.
macro_rules! guard {
    ($rows:literal, $n:literal) => {
        concat!(" SELECT 1/(count(*) = ", $n, "::bigint)::int FROM ", $rows)
    };
}
pub(super) use guard;

/// Appends the changes of the numbers of jobs that `$rows` describe: rows of queue, type, state and
/// change.
macro_rules! counted {
    ($rows:literal) => {
        concat!(
            ", counted AS (INSERT INTO counts (queue, type, state, jobs) \
             SELECT n.queue, n.type, n.state, sum(n.change) FROM (",
            $rows,
            ") n(queue, type, state, change) GROUP BY 1, 2, 3 HAVING sum(n.change) <> 0)"
        )
    };
}
pub(super) use counted;

/// Selects and locks the items of arrays of kinds, names and versions.
macro_rules! required {
    ($kinds:literal, $names:literal, $versions:literal) => {
        concat!(
            "SELECT 1 FROM unnest(",
            $kinds,
            "::text[], ",
            $names,
            "::text[], ",
            $versions,
            "::bigint[]) w(kind, name, version) \
             CROSS JOIN LATERAL (SELECT FROM items \
             WHERE kind = w.kind AND name = w.name AND version = w.version FOR SHARE) i"
        )
    };
}
pub(super) use required;

/// Deletes ledgers of some versions, and inserts the next ones: the two parts `old_heads` and `new_heads`.
/// The arrays are of queues, new versions, new ledgers, and versions that are replaced.
macro_rules! set_heads {
    ($queues:literal, $versions:literal, $heads:literal, $was:literal) => {
        concat!(
            "old_heads AS (DELETE FROM heads h USING unnest(",
            $queues,
            "::int[], ",
            $versions,
            "::bigint[], ",
            $heads,
            "::bytea[], ",
            $was,
            "::bigint[]) w(queue, version, head, was) \
             WHERE h.queue = ANY(ARRAY[w.queue]) AND h.version BETWEEN w.was AND w.was \
             RETURNING w.queue, w.version, w.head), \
             new_heads AS (INSERT INTO heads (queue, version, head) \
             SELECT queue, version, head FROM old_heads RETURNING 1)"
        )
    };
}
pub(super) use set_heads;

/// Updates lifecycles: the part `lives`. `$columns` are typed arrays, the first one of `$ids`.
macro_rules! set_lives {
    ($ids:literal, $columns:literal) => {
        concat!(
            "lives AS (UPDATE jobs j SET state = w.state, revision = w.revision, \
             run_at = w.run_at, wake_at = CASE WHEN j.state = 1 AND w.state = 1 \
             AND j.wake_at <= w.wake_at THEN j.wake_at ELSE w.wake_at END, life = w.life \
             FROM unnest(",
            $columns,
            ") w(id, was, state, revision, run_at, wake_at, life) \
             JOIN jobs o ON o.id = w.id AND o.revision = w.was AND o.id = ANY(",
            $ids,
            ") WHERE j.id = w.id AND j.revision = w.was AND j.id = ANY(",
            $ids,
            ") RETURNING j.queue, j.type, o.state AS old, j.state AS new)"
        )
    };
}
pub(super) use set_lives;

/// Moves jobs that end to the other table: the parts `ends` and `moved`. `$columns` are typed arrays, the
/// first one of `$ids`.
macro_rules! end_lives {
    ($ids:literal, $columns:literal) => {
        concat!(
            "ends AS (DELETE FROM jobs j USING unnest(",
            $columns,
            ") w(id, was, state, revision, forget_at, wake_at, life) \
             WHERE j.id = w.id AND j.revision = w.was AND j.id = ANY(",
            $ids,
            ") RETURNING j.id, j.queue, j.type, j.state AS old, w.state AS new, j.data_kind, \
             j.data_bytes, w.revision, j.created_at, w.forget_at, w.wake_at, j.data, j.spec, w.life), \
             moved AS (INSERT INTO ended (id, queue, type, state, data_kind, data_bytes, revision, \
             created_at, forget_at, wake_at, data, spec, life) \
             SELECT id, queue, type, new, data_kind, data_bytes, revision, created_at, forget_at, \
             wake_at, data, spec, life FROM ends)"
        )
    };
}
pub(super) use end_lives;

/// Inserts or replaces the batches of arrays of queues, numbers, versions of ledgers, and batches.
macro_rules! put_batches {
    ($queues:literal, $ids:literal, $for_heads:literal, $batches:literal) => {
        concat!(
            "INSERT INTO batches (queue, id, for_head, batch) \
             SELECT w.queue, w.id, w.for_head, w.batch FROM unnest(",
            $queues,
            "::int[], ",
            $ids,
            "::bigint[], ",
            $for_heads,
            "::bigint[], ",
            $batches,
            "::bytea[]) w(queue, id, for_head, batch) ON CONFLICT (queue, id) DO UPDATE \
             SET for_head = excluded.for_head, batch = excluded.batch"
        )
    };
}
pub(super) use put_batches;

/// Deletes the batches of arrays of queues and numbers.
macro_rules! delete_batches {
    ($queues:literal, $ids:literal) => {
        concat!(
            "DELETE FROM batches b USING unnest(",
            $queues,
            "::int[], ",
            $ids,
            "::bigint[]) w(queue, id) \
             WHERE b.queue = ANY(ARRAY[w.queue]) AND b.id BETWEEN w.id AND w.id"
        )
    };
}
pub(super) use delete_batches;

/// Inserts or replaces the records of arrays of kinds, names, times and values.
macro_rules! put_records {
    ($kinds:literal, $names:literal, $untils:literal, $values:literal) => {
        concat!(
            "INSERT INTO records (kind, name, until, bytes) \
             SELECT w.kind, w.name, w.until, w.bytes FROM unnest(",
            $kinds,
            "::text[], ",
            $names,
            "::text[], ",
            $untils,
            "::bigint[], ",
            $values,
            "::bytea[]) w(kind, name, until, bytes) ON CONFLICT (kind, name) DO UPDATE \
             SET until = excluded.until, bytes = excluded.bytes"
        )
    };
}
pub(super) use put_records;
