-- Losses of acknowledged commits that servers found: one for each timeline. Servers that start later report
-- the latest one.
CREATE TABLE losses (
    cluster  bigint NOT NULL,  -- the identity of the database's server and of its standbys
    timeline bigint NOT NULL,  -- counts the promotions of standbys
    found_at bigint NOT NULL,
    bytes    bigint NOT NULL,  -- of the write-ahead log, at least
    PRIMARY KEY (cluster, timeline)
);
