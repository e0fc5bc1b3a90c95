//! The statements of a group, each for all its transactions at once.
//!
//! A statement that has conditions ends with a *guard*: it divides by zero unless every row was
//! written. The server then rolls back the whole group, although its later statements and its
//! `COMMIT` are sent already. Rows are written in the order of the arrays, which are sorted by the
//! primary key, so that two groups lock in the same order.
//!
//! Each condition on a stored row is repeated as `= ANY` of the array. The join alone may be planned
//! as a scan of the whole table, by statistics of a time when the table was empty; with it, every
//! plan reads only the rows that the statement names. What has a key of several columns is looked up
//! in another way, which [`super::parts`] describes.
//!
//! Plain SQL of Postgres 13: compare and set only, at READ COMMITTED. A guarded write waits for a
//! rival that has not committed, and then compares again.
//!
//! Those of a tick are made of [`super::parts`], which [`super::single`] has in one statement.

use super::parts::{
    counted, delete_batches, end_lives, guard, put_batches, put_records, required, set_heads,
    set_lives,
};

/// Gives absent items a row, so that a requirement of their absence can lock it.
pub(super) const PLACEHOLDERS: &str = "INSERT INTO items (kind, name, version) \
     SELECT w.kind, w.name, 0 FROM unnest($1::text[], $2::text[]) w(kind, name) \
     ON CONFLICT DO NOTHING";

/// Items that must have a version. The lock keeps it until the commit; a plain read would not, at
/// any level of isolation.
pub(super) const REQUIRE: &str =
    concat!("WITH u AS (", required!("$1", "$2", "$3"), ")", guard!("u", "$4"));

/// Requests of the inbox that must be there.
pub(super) const TAKE_REQUESTS: &str = concat!(
    "WITH u AS (DELETE FROM inbox WHERE id = ANY($1::text[]) RETURNING 1)",
    guard!("u", "$2")
);

/// New items, or items in place of absent ones.
pub(super) const NEW_ITEMS: &str = concat!(
    "WITH u AS (INSERT INTO items AS i (kind, name, version, bytes) SELECT w.kind, w.name, \
     w.version, w.bytes FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bytea[]) \
     w(kind, name, version, bytes) ON CONFLICT (kind, name) DO UPDATE \
     SET version = excluded.version, bytes = excluded.bytes WHERE i.version = 0 RETURNING 1)",
    guard!("u", "$5")
);

/// Lets no server require an item until the commit. Rows are no queue: those who share the lock of a
/// row take no notice of one that waits to change it, and many of them would keep it waiting for
/// seconds. Tables are one. Plain reads go on.
pub(super) const LOCK_ITEMS: &str = "LOCK TABLE items IN EXCLUSIVE MODE";

/// Items in place of those of a version.
pub(super) const SET_ITEMS: &str = concat!(
    "WITH u AS (UPDATE items i SET version = w.version, bytes = w.bytes \
     FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bytea[], $5::bigint[]) \
     w(kind, name, version, bytes, was) \
     WHERE i.kind = ANY(ARRAY[w.kind]) AND i.name BETWEEN w.name AND w.name \
     AND i.version BETWEEN w.was AND w.was RETURNING 1)",
    guard!("u", "$6")
);

/// Items changed that servers cache.
pub(super) const ITEMS_CHANGED: &str = "UPDATE item_changes SET n = n + $1";

/// The first ledgers. Of several writers, the one that inserts the row of version 0 may.
pub(super) const NEW_HEADS: &str = concat!(
    "WITH w AS (SELECT * FROM unnest($1::int[], $2::bigint[], $3::bytea[]) w(queue, version, head)), \
     m AS (INSERT INTO heads (queue, version, head) SELECT queue, 0, ''::bytea FROM w \
     ON CONFLICT DO NOTHING RETURNING queue), \
     u AS (INSERT INTO heads (queue, version, head) \
     SELECT w.queue, w.version, w.head FROM w JOIN m USING (queue) RETURNING 1)",
    guard!("u", "$4")
);

/// The next ledgers.
pub(super) const SET_HEADS: &str =
    concat!("WITH ", set_heads!("$1", "$2", "$3", "$4"), guard!("new_heads", "$5"));

/// Changes of the lifecycle of jobs that do not end. An earlier check of a job that goes on running stays,
/// so that a heartbeat changes no index: see [`super::overdue`].
pub(super) const SET_LIVES: &str = concat!(
    "WITH ",
    set_lives!(
        "$1",
        "$1::text[], $2::bigint[], $3::smallint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bytea[]"
    ),
    counted!(
        "SELECT queue, type, old, -1 FROM lives WHERE old <> new \
         UNION ALL SELECT queue, type, new, 1 FROM lives WHERE old <> new"
    ),
    guard!("lives", "$8")
);

/// Jobs that end: they move to the other table.
pub(super) const END_LIVES: &str = concat!(
    "WITH ",
    end_lives!(
        "$1",
        "$1::text[], $2::bigint[], $3::smallint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bytea[]"
    ),
    counted!(
        "SELECT queue, type, old, -1 FROM ends UNION ALL SELECT queue, type, new, 1 FROM ends"
    ),
    guard!("ends", "$8")
);

/// Changes of the lifecycle of jobs that have ended.
pub(super) const SET_ENDED: &str = concat!(
    "WITH u AS (UPDATE ended e SET state = w.state, revision = w.revision, \
     forget_at = w.forget_at, wake_at = w.wake_at, life = w.life \
     FROM unnest($1::text[], $2::bigint[], $3::smallint[], $4::bigint[], $5::bigint[], \
     $6::bigint[], $7::bytea[]) w(id, was, state, revision, forget_at, wake_at, life) \
     WHERE e.id = w.id AND e.revision = w.was AND e.id = ANY($1) RETURNING 1)",
    guard!("u", "$8")
);

/// Changes of whole jobs that do not end.
pub(super) const SET_JOBS: &str = concat!(
    "WITH u AS (UPDATE jobs j SET queue = w.queue, type = w.type, state = w.state, \
     critical = w.critical, data_kind = w.data_kind, priority = w.priority, \
     data_bytes = w.data_bytes, revision = w.revision, run_at = w.run_at, wake_at = w.wake_at, \
     created_at = w.created_at, partition = w.partition, data = w.data, spec = w.spec, \
     life = w.life \
     FROM unnest($1::text[], $2::int[], $3::int[], $4::smallint[], $5::bool[], $6::smallint[], \
     $7::int[], $8::int[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::text[], \
     $14::bytea[], $15::bytea[], $16::bytea[], $17::bigint[]) \
     w(id, queue, type, state, critical, data_kind, priority, data_bytes, revision, run_at, \
     wake_at, created_at, partition, data, spec, life, was) \
     JOIN jobs o ON o.id = w.id AND o.revision = w.was AND o.id = ANY($1) \
     WHERE j.id = w.id AND j.revision = w.was AND j.id = ANY($1) \
     RETURNING o.queue AS old_queue, o.type AS old_type, o.state AS old, j.queue, j.type, \
     j.state AS new)",
    counted!(
        "SELECT old_queue, old_type, old, -1 FROM u UNION ALL SELECT queue, type, new, 1 FROM u"
    ),
    guard!("u", "$18")
);

/// Deletes live jobs.
pub(super) const DELETE_JOBS: &str = concat!(
    "WITH d AS (DELETE FROM jobs j USING unnest($1::text[], $2::bigint[]) w(id, was) \
     WHERE j.id = w.id AND j.revision = w.was AND j.id = ANY($1) RETURNING j.queue, j.type, j.state)",
    counted!("SELECT queue, type, state, -1 FROM d"),
    guard!("d", "$3")
);

/// Deletes ended jobs.
pub(super) const DELETE_ENDED: &str = concat!(
    "WITH d AS (DELETE FROM ended e USING unnest($1::text[], $2::bigint[]) w(id, was) \
     WHERE e.id = w.id AND e.revision = w.was AND e.id = ANY($1) RETURNING e.queue, e.type, e.state)",
    counted!("SELECT queue, type, state, -1 FROM d"),
    guard!("d", "$3")
);

/// Deletes the keys of removed jobs.
pub(super) const DELETE_KEYS: &str = "DELETE FROM keys WHERE job = ANY($1::text[])";

/// Deletes bodies that are no longer separate.
pub(super) const DELETE_BODIES: &str = "DELETE FROM bodies WHERE id = ANY($1::text[])";

/// Separate bodies.
pub(super) const PUT_BODIES: &str = "INSERT INTO bodies (id, encoding, bytes) \
     SELECT w.id, w.encoding, w.bytes FROM unnest($1::text[], $2::smallint[], $3::bytea[]) \
     w(id, encoding, bytes) ON CONFLICT (id) DO UPDATE \
     SET encoding = excluded.encoding, bytes = excluded.bytes";

/// The insertion of jobs whose ids are free.
macro_rules! add_jobs {
    () => {
        "WITH a AS (INSERT INTO jobs (id, queue, type, state, critical, data_kind, priority, \
         data_bytes, revision, run_at, wake_at, created_at, partition, data, spec, life) \
         SELECT * FROM unnest($1::text[], $2::int[], $3::int[], $4::smallint[], $5::bool[], \
         $6::smallint[], $7::int[], $8::int[], $9::bigint[], $10::bigint[], $11::bigint[], \
         $12::bigint[], $13::text[], $14::bytea[], $15::bytea[], $16::bytea[]) \
         ON CONFLICT (id) DO NOTHING RETURNING id, queue, type, state)"
    };
}

/// Jobs whose transactions write nothing else: those whose ids were free.
pub(super) const ADD_ALONE: &str =
    concat!(add_jobs!(), counted!("SELECT queue, type, state, 1 FROM a"), " SELECT id FROM a");

/// Jobs whose ids must be free.
pub(super) const ADD: &str =
    concat!(add_jobs!(), counted!("SELECT queue, type, state, 1 FROM a"), guard!("a", "$17"));

/// Fails if an ended job has one of these ids. It runs after the insertion of the new jobs: that
/// waits for a rival that ends a job of this id, and this statement then sees what it wrote. The order keeps
/// the planner from the index by type and time. With a plain `=`, it would be the order of a constant.
pub(super) const NOT_ENDED: &str = concat!(
    "WITH u AS (SELECT 1 FROM unnest($1::text[]) w(id) CROSS JOIN LATERAL \
     (SELECT FROM ended e WHERE e.id = ANY(ARRAY[w.id]) ORDER BY e.id OFFSET 0) e)",
    guard!("u", "0")
);

/// Moves added jobs that have ended to the other table.
pub(super) const MOVE_ENDED: &str = concat!(
    "WITH d AS (DELETE FROM jobs j USING unnest($1::text[], $2::bigint[], $3::bigint[]) \
     w(id, forget_at, wake_at) WHERE j.id = w.id AND j.state > 1 AND j.id = ANY($1) \
     RETURNING j.*, w.forget_at, w.wake_at AS ended_wake_at), \
     moved AS (INSERT INTO ended (id, queue, type, state, data_kind, data_bytes, revision, \
     created_at, forget_at, wake_at, data, spec, life) \
     SELECT id, queue, type, state, data_kind, data_bytes, revision, created_at, forget_at, \
     ended_wake_at, data, spec, life FROM d)",
    guard!("d", "$4")
);

/// Grant batches.
pub(super) const PUT_BATCHES: &str = put_batches!("$1", "$2", "$3", "$4");

/// Deletes grant batches.
pub(super) const DELETE_BATCHES: &str = delete_batches!("$1", "$2");

/// Keys that must be free.
pub(super) const NEW_KEYS: &str = concat!(
    "WITH u AS (INSERT INTO keys (kind, type, key, job) SELECT w.kind, w.type, w.key, w.job \
     FROM unnest($1::smallint[], $2::int[], $3::text[], $4::text[]) w(kind, type, key, job) \
     ON CONFLICT DO NOTHING RETURNING 1)",
    guard!("u", "$5")
);

/// Keys that must lead to a job.
pub(super) const SET_KEYS: &str = concat!(
    "WITH u AS (UPDATE keys k SET job = w.job \
     FROM unnest($1::smallint[], $2::int[], $3::text[], $4::text[], $5::text[]) \
     w(kind, type, key, job, was) \
     WHERE k.kind = w.kind AND k.type = w.type AND k.key = w.key AND k.job = w.was \
     AND k.kind = ANY($1) AND k.type = ANY($2) AND k.key = ANY($3) \
     AND k.job = ANY($5) RETURNING 1)",
    guard!("u", "$6")
);

/// Records, in place of any others.
pub(super) const PUT_RECORDS: &str = put_records!("$1", "$2", "$3", "$4");

/// Records that must be absent.
pub(super) const NEW_RECORDS: &str = concat!(
    "WITH u AS (INSERT INTO records (kind, name, until, bytes) \
     SELECT w.kind, w.name, w.until, w.bytes \
     FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bytea[]) w(kind, name, until, bytes) \
     ON CONFLICT DO NOTHING RETURNING 1)",
    guard!("u", "$5")
);

/// Records in place of others.
pub(super) const SWAP_RECORDS: &str = concat!(
    "WITH u AS (UPDATE records r SET until = w.until, bytes = w.bytes \
     FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bytea[], $5::bigint[], $6::bytea[]) \
     w(kind, name, until, bytes, was_until, was) \
     WHERE r.kind = ANY(ARRAY[w.kind]) AND r.name BETWEEN w.name AND w.name \
     AND r.until BETWEEN w.was_until AND w.was_until AND r.bytes BETWEEN w.was AND w.was \
     RETURNING 1)",
    guard!("u", "$7")
);

/// Deletes records of any time, or of one. Those of any time must be [locked](look::RECORDS) before: one that
/// a rival replaces meanwhile stays.
///
/// The index by time has the columns of the key, too, but not next to each other. On few rows the planner
/// takes either. So each record is read first, in the order of the key, and the deletion has the columns of
/// both indexes.
pub(super) const DELETE_RECORDS: &str = "DELETE FROM records r \
     USING unnest($1::text[], $2::text[], $3::bigint[]) w(kind, name, until) \
     CROSS JOIN LATERAL (SELECT kind, name, until FROM records \
     WHERE kind = w.kind AND name BETWEEN w.name AND w.name \
     AND until = coalesce(w.until, until) ORDER BY name) o \
     WHERE r.kind = ANY(ARRAY[o.kind]) AND r.until BETWEEN o.until AND o.until \
     AND r.name BETWEEN o.name AND o.name";

/// Locks what some transactions name, and reads it.
pub(super) mod look {
    use crate::postgres::row::job_columns;

    pub(in crate::postgres) const ITEMS: &str = "SELECT w.kind, w.name, i.version \
         FROM unnest($1::text[], $2::text[]) w(kind, name) \
         CROSS JOIN LATERAL (SELECT version FROM items \
         WHERE kind = w.kind AND name = w.name FOR SHARE) i";
    pub(in crate::postgres) const CHANGED_ITEMS: &str = "SELECT w.kind, w.name, i.version \
         FROM unnest($1::text[], $2::text[]) w(kind, name) \
         CROSS JOIN LATERAL (SELECT version FROM items \
         WHERE kind = w.kind AND name = w.name FOR NO KEY UPDATE) i";
    pub(in crate::postgres) const REQUESTS: &str =
        "SELECT id FROM inbox WHERE id = ANY($1::text[]) ORDER BY id FOR UPDATE";
    /// Locks the ledgers of some versions, as far as they are the newest ones.
    pub(in crate::postgres) const HEADS: &str = "SELECT 1 \
         FROM unnest($1::int[], $2::bigint[]) w(queue, version) \
         CROSS JOIN LATERAL (SELECT FROM heads \
         WHERE queue = w.queue AND version = w.version FOR UPDATE) h";
    /// The versions of the newest ledgers.
    pub(in crate::postgres) const NEWEST_HEADS: &str = "SELECT w.queue, h.version \
         FROM unnest($1::int[]) w(queue) CROSS JOIN LATERAL (SELECT version FROM heads \
         WHERE queue = w.queue AND version > 0 ORDER BY version DESC LIMIT 1) h";
    pub(in crate::postgres) const JOBS: &str = concat!(
        "SELECT ",
        job_columns!("j"),
        ", j.revision FROM jobs j WHERE j.id = ANY($1::text[]) ORDER BY j.id FOR UPDATE"
    );
    pub(in crate::postgres) const ENDED: &str = concat!(
        "SELECT ",
        job_columns!("e"),
        ", e.revision, e.forget_at, e.wake_at FROM ended e WHERE e.id = ANY($1::text[]) \
         ORDER BY e.id FOR UPDATE"
    );
    pub(in crate::postgres) const KEYS: &str = "SELECT w.kind, w.type, w.key, k.job \
         FROM unnest($1::smallint[], $2::int[], $3::text[]) w(kind, type, key) \
         CROSS JOIN LATERAL (SELECT job FROM keys \
         WHERE kind = w.kind AND type = w.type AND key = w.key FOR NO KEY UPDATE) k";
    /// In the order of the key, which keeps the planner from the index by time.
    pub(in crate::postgres) const RECORDS: &str = "SELECT w.kind, w.name, r.until, r.bytes \
         FROM unnest($1::text[], $2::text[]) w(kind, name) \
         CROSS JOIN LATERAL (SELECT until, bytes FROM records \
         WHERE kind = w.kind AND name BETWEEN w.name AND w.name ORDER BY name \
         FOR NO KEY UPDATE) r";
}

/// Every statement of a group, to be prepared when a connection opens.
pub(super) const ALL: [&str; 38] = [
    PLACEHOLDERS,
    REQUIRE,
    NEW_ITEMS,
    SET_ITEMS,
    ITEMS_CHANGED,
    NEW_HEADS,
    SET_HEADS,
    SET_LIVES,
    END_LIVES,
    SET_ENDED,
    SET_JOBS,
    DELETE_JOBS,
    DELETE_ENDED,
    DELETE_KEYS,
    DELETE_BODIES,
    PUT_BODIES,
    ADD_ALONE,
    ADD,
    NOT_ENDED,
    MOVE_ENDED,
    PUT_BATCHES,
    DELETE_BATCHES,
    NEW_KEYS,
    SET_KEYS,
    PUT_RECORDS,
    NEW_RECORDS,
    SWAP_RECORDS,
    DELETE_RECORDS,
    TAKE_REQUESTS,
    look::ITEMS,
    look::HEADS,
    look::NEWEST_HEADS,
    look::JOBS,
    look::ENDED,
    look::KEYS,
    look::CHANGED_ITEMS,
    look::RECORDS,
    look::REQUESTS,
];
