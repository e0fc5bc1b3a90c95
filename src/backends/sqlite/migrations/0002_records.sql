-- Values that are stored for a time and then dropped: replies that wait for their jobs, and events
-- that no trigger could handle.

CREATE TABLE records (
    n     INTEGER PRIMARY KEY,
    kind  TEXT    NOT NULL,  -- reply, dead_letter
    name  TEXT    NOT NULL,
    until INTEGER NOT NULL,  -- when it may be dropped
    bytes BLOB    NOT NULL   -- JSON
) STRICT;

-- Which records of a kind have this prefix?
CREATE UNIQUE INDEX records_by_name ON records (kind, name);
-- Which are dropped first?
CREATE INDEX records_by_time ON records (kind, until);

-- Views for the sqlite3 shell.

CREATE VIEW records_readable AS
    SELECT kind, name, strftime('%Y-%m-%dT%H:%M:%fZ', until / 1000.0, 'unixepoch') AS until, CAST(bytes AS TEXT) AS json FROM records;
