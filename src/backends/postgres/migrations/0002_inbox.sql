-- Requests for jobs, which applications make by `enqueue` in their own transactions. A server removes a
-- request in the transaction that adds its job.
CREATE TABLE inbox (
    n          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- in the order of the calls
    id         text COLLATE "C" NOT NULL UNIQUE,  -- of the job
    type       text        NOT NULL,
    data       json        NOT NULL,
    bytes      int         NOT NULL,  -- of data and options
    options    json        NOT NULL,  -- an object
    delay_ms   bigint,                -- from called_at
    run_at     bigint,
    called_at  timestamptz NOT NULL,  -- by the clock of the database
    caller     text        NOT NULL   -- a role
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);
ALTER TABLE inbox ALTER COLUMN data SET STORAGE EXTERNAL;

-- One row: what `enqueue` checks, by the settings of the server that started last. No setting allows zero
-- bytes: with them a move to another store has closed the inbox.
CREATE TABLE inbox_rules (max_data_bytes bigint NOT NULL, create_unknown_types bool NOT NULL);
INSERT INTO inbox_rules VALUES (1048576, false);

-- Requests a job, which a server adds after the commit of this transaction, and returns its id.
--
-- `options` has the other fields of POST /v1/jobs. What only a server can check is checked when it adds
-- the job: what it refuses becomes a dead letter.
--
-- It runs with the rights of its owner, so a caller needs none on the tables. The path of schemas has
-- those of Postgres alone, so that a caller cannot put objects of their own in the place of these.
DO $do$
BEGIN
    EXECUTE format($create$
CREATE FUNCTION enqueue(
    type    text,
    data    json        DEFAULT 'null',
    delay   interval    DEFAULT NULL,
    run_at  timestamptz DEFAULT NULL,
    options json        DEFAULT '{}'
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
#variable_conflict use_variable
DECLARE
    called_at constant timestamptz := clock_timestamp();
    called_ms constant bigint := round(extract(epoch FROM called_at)::numeric * 1000);
    random    constant bytea := uuid_send(gen_random_uuid());
    digits    constant text := '0123456789abcdefghjkmnpqrstvwxyz';
    rules     %1$I.inbox_rules;
    bytes     constant int := octet_length(data::text);
    more      constant int := octet_length(options::text);
    delay_ms  constant bigint := round(extract(epoch FROM delay)::numeric * 1000);
    run_ms    bigint;
    new_id    text;
BEGIN
    SELECT * INTO rules FROM %1$I.inbox_rules;
    IF rules.max_data_bytes = 0 THEN
        RAISE EXCEPTION 'the jobs of this database are moved to another store: enqueue there'
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    IF type IS NULL OR type !~ '^[A-Za-z0-9_.-]{1,64}$' OR type IN ('.', '..') THEN
        RAISE EXCEPTION 'type: must be 1 to 64 of A-Z a-z 0-9 _ . -, and not "." or ".."'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT rules.create_unknown_types AND NOT EXISTS (
        SELECT FROM %1$I.items i WHERE i.kind = 'type' AND i.name = type AND i.version > 0
    ) THEN
        RAISE EXCEPTION 'type: there is no job type %%', type USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF data IS NULL THEN
        RAISE EXCEPTION 'data: must not be NULL; the JSON value null is ''null'''
            USING ERRCODE = 'null_value_not_allowed';
    END IF;
    IF bytes > rules.max_data_bytes THEN
        RAISE EXCEPTION 'data: is larger than %% bytes', rules.max_data_bytes
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF delay IS NOT NULL AND run_at IS NOT NULL THEN
        RAISE EXCEPTION 'delay: must not be given with run_at'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF delay_ms < 0 THEN
        RAISE EXCEPTION 'delay: must not be negative' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF run_at IS NOT NULL THEN
        IF run_at < '1970-01-01Z' OR run_at >= '10000-01-01Z' THEN
            RAISE EXCEPTION 'run_at: must be from 1970 to 9999'
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        run_ms := round(extract(epoch FROM run_at)::numeric * 1000);
    END IF;
    IF json_typeof(options) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'options: must be a JSON object' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF more > 65536 THEN
        RAISE EXCEPTION 'options: are larger than 65536 bytes'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- A ULID in lower case: ten digits of the time, sixteen at random.
    SELECT string_agg(
        substr(digits, 1 + CASE
            WHEN n < 10 THEN ((called_ms >> (5 * (9 - n))) & 31)::int
            ELSE get_byte(random, n - 10) & 31
        END, 1), '' ORDER BY n
    ) INTO new_id FROM generate_series(0, 25) n;
    INSERT INTO %1$I.inbox (id, type, data, bytes, options, delay_ms, run_at, called_at, caller)
        VALUES (new_id, type, data, bytes + more, options, delay_ms, run_ms, called_at, session_user);
    RETURN new_id;
END
$body$ $create$, current_schema());
END
$do$;
REVOKE ALL ON FUNCTION enqueue(text, json, interval, timestamptz, json) FROM PUBLIC;
