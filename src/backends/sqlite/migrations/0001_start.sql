-- Instants are milliseconds since 1970 in UTC. The views at the end show them as RFC 3339.
-- A blob is a format byte, a checksum of four bytes, and MessagePack. Checked bytes are a checksum
-- of four bytes, and the bytes.

CREATE TABLE queue_names (n INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE type_names  (n INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;

CREATE TABLE jobs (
    n          INTEGER PRIMARY KEY,
    id         TEXT    NOT NULL,
    queue      INTEGER NOT NULL,  -- queue_names.n
    type       INTEGER NOT NULL,  -- type_names.n
    -- 0 scheduled, 1 running, 2 succeeded, 3 failed, 4 expired, 5 cancelled, 6 dropped
    state      INTEGER NOT NULL,
    revision   INTEGER NOT NULL,
    run_at     INTEGER,           -- of a scheduled job
    wake_at    INTEGER,           -- when the job must be checked without a request
    created_at INTEGER NOT NULL,
    priority   INTEGER NOT NULL,
    critical   INTEGER NOT NULL,
    partition  TEXT    NOT NULL,
    -- 0 JSON here, 1 MessagePack here, 2 in bodies, 3 JSON object, 4 MessagePack object
    data_kind  INTEGER NOT NULL,
    data_bytes INTEGER NOT NULL,
    data       BLOB,              -- the data, or the object's key; checked
    spec       BLOB    NOT NULL,  -- a blob
    life       BLOB    NOT NULL   -- a blob
) STRICT;

-- Which job is this?
CREATE UNIQUE INDEX jobs_by_id ON jobs (id);
-- Which jobs of this queue are due, in any order? One stream per partition, type and priority; see
-- due/mod.rs.
CREATE INDEX jobs_due ON jobs (queue, critical, partition, type, priority, run_at, id) WHERE state = 0;
-- Which jobs of this queue run?
CREATE INDEX jobs_running ON jobs (queue, id) WHERE state = 1;
-- Which jobs must be checked now, and when is the next one?
CREATE INDEX jobs_wake ON jobs (wake_at) WHERE wake_at IS NOT NULL;
-- Which are the latest jobs of this type?
CREATE INDEX jobs_latest ON jobs (type, created_at);
-- Which are the latest jobs that did not succeed? They are few, and often listed.
CREATE INDEX jobs_ended_badly ON jobs (state, created_at) WHERE state > 2;

-- Data of over 1 KiB, written once, so that a change of state does not copy it.
CREATE TABLE bodies (
    job      INTEGER PRIMARY KEY,  -- jobs.n
    encoding INTEGER NOT NULL,     -- 0 JSON, 1 MessagePack
    bytes    BLOB    NOT NULL      -- checked
) STRICT;

-- The number of jobs, updated by the transactions that change it: counting a million rows takes too
-- long.
CREATE TABLE counts (
    queue INTEGER NOT NULL,
    type  INTEGER NOT NULL,
    state INTEGER NOT NULL,
    jobs  INTEGER NOT NULL,
    PRIMARY KEY (queue, type, state)
) STRICT, WITHOUT ROWID;

CREATE TABLE keys (
    kind INTEGER NOT NULL,  -- 0 correlation, 1 unique, 2 idempotency
    type INTEGER NOT NULL,  -- type_names.n, or 0
    key  TEXT    NOT NULL,
    job  TEXT    NOT NULL,  -- jobs.id
    sum  INTEGER NOT NULL,  -- the checksum of the row
    PRIMARY KEY (kind, type, key)
) STRICT, WITHOUT ROWID;
-- Which keys are deleted with this job?
CREATE INDEX keys_by_job ON keys (job);

CREATE TABLE heads (
    queue   INTEGER PRIMARY KEY,  -- queue_names.n
    version INTEGER NOT NULL,
    head    BLOB    NOT NULL      -- a blob
) STRICT;

CREATE TABLE batches (
    queue    INTEGER NOT NULL,  -- queue_names.n
    id       INTEGER NOT NULL,
    for_head INTEGER NOT NULL,
    batch    BLOB    NOT NULL,  -- a blob
    PRIMARY KEY (queue, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE items (
    kind    TEXT    NOT NULL,  -- queue, type, token, operation
    name    TEXT    NOT NULL,
    version INTEGER NOT NULL,
    bytes   BLOB    NOT NULL,  -- JSON, checked
    PRIMARY KEY (kind, name)
) STRICT;

-- Values that are stored for a time and then dropped: replies that wait for their jobs, and events
-- that no trigger could handle.

CREATE TABLE records (
    n     INTEGER PRIMARY KEY,
    kind  TEXT    NOT NULL,  -- reply, dead_letter
    name  TEXT    NOT NULL,
    until INTEGER NOT NULL,  -- when it may be dropped
    bytes BLOB    NOT NULL   -- JSON, checked
) STRICT;

-- Which records of a kind have this prefix?
CREATE UNIQUE INDEX records_by_name ON records (kind, name);
-- Which are dropped first?
CREATE INDEX records_by_time ON records (kind, until);

-- Views for the sqlite3 shell.

CREATE VIEW state_words (state, word) AS
    VALUES (0, 'scheduled'), (1, 'running'), (2, 'succeeded'), (3, 'failed'), (4, 'expired'), (5, 'cancelled'), (6, 'dropped');

CREATE VIEW jobs_readable AS
    SELECT jobs.id, type_names.name AS type, queue_names.name AS queue, state_words.word AS state, priority, critical, partition,
           strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000.0, 'unixepoch') AS created_at,
           strftime('%Y-%m-%dT%H:%M:%fZ', run_at / 1000.0, 'unixepoch') AS run_at,
           strftime('%Y-%m-%dT%H:%M:%fZ', wake_at / 1000.0, 'unixepoch') AS wake_at,
           data_bytes,
           CASE data_kind WHEN 0 THEN CAST(substr(data, 5) AS TEXT) WHEN 1 THEN '(MessagePack) ' || hex(substr(data, 5)) WHEN 2 THEN '(in bodies)'
                          ELSE '(object) ' || CAST(substr(data, 5) AS TEXT) END AS data
      FROM jobs
      JOIN type_names ON type_names.n = jobs.type
      JOIN queue_names ON queue_names.n = jobs.queue
      JOIN state_words ON state_words.state = jobs.state;

CREATE VIEW counts_readable AS
    SELECT queue_names.name AS queue, type_names.name AS type, state_words.word AS state, counts.jobs
      FROM counts
      JOIN type_names ON type_names.n = counts.type
      JOIN queue_names ON queue_names.n = counts.queue
      JOIN state_words ON state_words.state = counts.state
     WHERE counts.jobs > 0;

CREATE VIEW items_readable AS
    SELECT kind, name, version, CAST(substr(bytes, 5) AS TEXT) AS json FROM items;

CREATE VIEW records_readable AS
    SELECT kind, name, strftime('%Y-%m-%dT%H:%M:%fZ', until / 1000.0, 'unixepoch') AS until, CAST(substr(bytes, 5) AS TEXT) AS json FROM records;
