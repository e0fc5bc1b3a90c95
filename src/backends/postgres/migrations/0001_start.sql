-- Instants are milliseconds since 1970 in UTC, by the clocks of the servers. The clock of the
-- database decides nothing. A blob is a format byte, a checksum of four bytes, and MessagePack.
-- Checked bytes are a checksum of four bytes, and the bytes.

CREATE TABLE queue_names (n int PRIMARY KEY, name text COLLATE "C" NOT NULL UNIQUE);
CREATE TABLE type_names  (n int PRIMARY KEY, name text COLLATE "C" NOT NULL UNIQUE);

-- Scheduled and running jobs only. A change of state is never a HOT update, because each index
-- depends on it; a heartbeat is one, for which pages have room.
CREATE TABLE jobs (
    id         text COLLATE "C" PRIMARY KEY,
    queue      int      NOT NULL,  -- queue_names.n
    type       int      NOT NULL,  -- type_names.n
    -- 0 scheduled, 1 running, 2 succeeded, 3 failed, 4 expired, 5 cancelled, 6 dropped
    state      smallint NOT NULL,
    critical   bool     NOT NULL,
    -- 0 JSON here, 1 MessagePack here, 2 in bodies, 3 JSON object, 4 MessagePack object
    data_kind  smallint NOT NULL,
    priority   int      NOT NULL,
    data_bytes int      NOT NULL,
    revision   bigint   NOT NULL,
    run_at     bigint,             -- of a scheduled job
    wake_at    bigint,             -- when the job must be checked without a request
    created_at bigint   NOT NULL,
    partition  text COLLATE "C" NOT NULL,
    data       bytea,              -- the data, or the object's key; checked
    spec       bytea    NOT NULL,  -- a blob
    life       bytea    NOT NULL   -- a blob
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);
-- Which jobs of this queue are due, in any order? One stream per partition, type and priority.
CREATE INDEX jobs_due ON jobs (queue, critical, partition, type, priority, run_at, id) WHERE state = 0;
-- Which jobs of this queue run?
CREATE INDEX jobs_running ON jobs (queue, id) WHERE state = 1;
-- Which jobs must be checked now, and when is the next one?
CREATE INDEX jobs_wake ON jobs (wake_at, id) WHERE wake_at IS NOT NULL;
-- Which are the latest jobs of this type?
CREATE INDEX jobs_latest ON jobs (type, created_at, id);

-- Ended jobs, by the time at which they are forgotten. A partition is dropped as a whole.
CREATE TABLE ended (
    id         text COLLATE "C" NOT NULL,
    queue      int      NOT NULL,
    type       int      NOT NULL,
    state      smallint NOT NULL,
    data_kind  smallint NOT NULL,
    data_bytes int      NOT NULL,
    revision   bigint   NOT NULL,
    created_at bigint   NOT NULL,
    forget_at  bigint   NOT NULL,  -- from then on readers hide it
    wake_at    bigint,             -- when its objects must be deleted, if it names some
    data       bytea,
    spec       bytea    NOT NULL,
    life       bytea    NOT NULL
) PARTITION BY RANGE (forget_at);
CREATE INDEX ended_by_id ON ended (id);
CREATE INDEX ended_latest ON ended (type, created_at, id);
CREATE INDEX ended_badly ON ended (state, created_at, id) WHERE state > 2;
CREATE INDEX ended_wake ON ended (wake_at, id) WHERE wake_at IS NOT NULL;

-- Data of over 1 KiB, written once, so that a change of state does not copy it.
CREATE TABLE bodies (
    id       text COLLATE "C" PRIMARY KEY,  -- of its job
    encoding smallint NOT NULL,             -- 0 JSON, 1 MessagePack
    bytes    bytea    NOT NULL              -- checked
);
ALTER TABLE bodies ALTER COLUMN bytes SET STORAGE EXTERNAL;

CREATE TABLE keys (
    kind smallint NOT NULL,  -- 0 correlation, 1 unique, 2 idempotency
    type int      NOT NULL,  -- type_names.n, or 0
    key  text COLLATE "C" NOT NULL,
    job  text COLLATE "C" NOT NULL,
    PRIMARY KEY (kind, type, key)
);
-- Which keys are deleted with this job?
CREATE INDEX keys_by_job ON keys (job);

-- The ledger of each queue. Its row is deleted and inserted with the next version: the dead
-- versions of one that is updated in place would slow down every reader while an old transaction
-- is open. The row of version 0 is never deleted. It decides who writes the first version.
CREATE TABLE heads (
    queue   int,
    version bigint,
    head    bytea NOT NULL,  -- a blob
    PRIMARY KEY (queue, version)
);
CREATE TABLE batches (
    queue    int,
    id       bigint,
    for_head bigint NOT NULL,
    batch    bytea  NOT NULL,  -- a blob
    PRIMARY KEY (queue, id)
);

-- An item of version 0 is absent. Its row can be locked, which an absent row cannot.
CREATE TABLE items (
    kind    text COLLATE "C",
    name    text COLLATE "C",
    version bigint NOT NULL,
    bytes   bytea,  -- JSON, checked
    PRIMARY KEY (kind, name)
);
-- One row: the number of changes of items that servers cache.
CREATE TABLE item_changes (n bigint NOT NULL);
INSERT INTO item_changes VALUES (1);

-- Values that are stored for a time and then dropped.
CREATE TABLE records (
    kind  text COLLATE "C",
    name  text COLLATE "C",
    until bigint NOT NULL,  -- when it may be dropped
    bytes bytea  NOT NULL,  -- checked
    PRIMARY KEY (kind, name)
);
CREATE INDEX records_by_time ON records (kind, until, name);

-- Changes of the numbers of jobs, which are summed when they are read. Each transaction appends
-- its own, so that none waits for another one, and a server sums them up from time to time.
CREATE TABLE counts (queue int NOT NULL, type int NOT NULL, state smallint NOT NULL, jobs bigint NOT NULL);
CREATE INDEX counts_by_queue ON counts (queue, type, state);

-- Large bodies and plugins, for a deployment without a bucket. An object is written once, or
-- replaced as a whole. Its bytes are random or compressed already, so Postgres need not try.
CREATE TABLE objects (
    path        text COLLATE "C" PRIMARY KEY,
    modified_at bigint NOT NULL,  -- milliseconds since 1970 in UTC, by the clock of the server
    bytes       bytea  NOT NULL
);
ALTER TABLE objects ALTER COLUMN bytes SET STORAGE EXTERNAL;
