-- The log, the consumer groups and what hangs on them, and the components that
-- are deployed, in the schema `event_host`, which the migrator has made.
--
-- The names of constraints are what a client is shown when it breaks them.
-- Nothing here relies on a search_path: every name is written in full.

-- The log. Any client that may insert does so in its own transaction; `type` is
-- all that it must give:
--     INSERT INTO event_host.events (type, data) VALUES ('invoice.paid', '{"id": 7}');
--
-- CACHE 1, because a session that drew positions ahead would use them after
-- higher ones have been handled. Values of fixed width stand first, so that
-- none needs padding.
CREATE TABLE event_host.events (
    position        bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
    -- CloudEvents' `time`: when it happened.
    time            timestamptz NOT NULL DEFAULT now()
                    CONSTRAINT time_is_finite_and_before_the_year_10000 CHECK (
                        isfinite(time) AND time <= '9999-12-30 22:00:00+00'),
    -- When it was appended.
    published_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    tenant          text NOT NULL DEFAULT '',
    -- The one group that receives the event; NULL for all that subscribe.
    deliver_to      text,
    -- The component that handles it instead of the group's own, where a replay
    -- names one.
    digest          text
                    CONSTRAINT digest_is_that_of_a_component_or_null CHECK (
                        digest IS NULL OR digest ~ '^sha256:[0-9a-f]{64}$' AND deliver_to IS NOT NULL),
    type            text NOT NULL
                    CONSTRAINT type_is_not_empty CHECK (type <> ''),
    id              text NOT NULL DEFAULT gen_random_uuid()::text
                    CONSTRAINT id_is_not_empty CHECK (id <> ''),
    source          text NOT NULL DEFAULT '/sql'
                    CONSTRAINT source_is_not_empty CHECK (source <> ''),
    subject         text,
    datacontenttype text,
    dataschema      text,
    partitionkey    text,
    -- Every other extension attribute: an object of booleans, integers and
    -- strings.
    extensions      jsonb
                    CONSTRAINT extensions_are_an_object CHECK (jsonb_typeof(extensions) = 'object')
                    CONSTRAINT extensions_have_names_of_a_to_z_and_digits CHECK (
                        NOT jsonb_path_exists(extensions,
                            'strict $.keyvalue() ? (!(@.key like_regex "^[a-z0-9]+$"))'))
                    CONSTRAINT extensions_are_booleans_integers_and_strings CHECK (
                        NOT jsonb_path_exists(extensions,
                            'strict $.* ? (@.type() == "object" || @.type() == "array"
                                || @.type() == "number" && (@ != @.floor() || @ < -2147483648 || @ > 2147483647))'))
                    CONSTRAINT extensions_are_no_attributes_of_their_own CHECK (
                        NOT extensions ?| ARRAY[
                            'specversion', 'id', 'source', 'type', 'subject', 'time',
                            'datacontenttype', 'dataschema', 'partitionkey', 'data']),
    data            bytea
);

-- A reader that filters by type reads every row that it looks at, so a frozen
-- and all-visible log is worth an early vacuum; nothing here ever dies but what
-- was rolled back.
ALTER TABLE event_host.events SET (autovacuum_vacuum_insert_scale_factor = 0.05);

CREATE FUNCTION event_host.refuse_change() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'events are never changed: insert a new one';
END
$$;

-- Once a statement, and never for an insert.
CREATE TRIGGER events_are_never_changed
BEFORE UPDATE ON event_host.events
FOR EACH STATEMENT EXECUTE FUNCTION event_host.refuse_change();

-- Publishes an event in the caller's transaction and gives its position.
--
-- SECURITY DEFINER, so that a role that may execute it needs no right to the
-- table; the search_path is pinned, so that it does what stands here whoever
-- calls it. `data` is kept as its JSON text. TIME is a word of SQL's own, so as
-- a named argument it stands in quotes: "time" => now().
CREATE FUNCTION event_host.publish(
    type            text,
    data            jsonb       DEFAULT NULL,
    id              text        DEFAULT NULL,
    source          text        DEFAULT NULL,
    subject         text        DEFAULT NULL,
    "time"          timestamptz DEFAULT NULL,
    datacontenttype text        DEFAULT NULL,
    dataschema      text        DEFAULT NULL,
    partitionkey    text        DEFAULT NULL,
    extensions      jsonb       DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    drawn bigint;
BEGIN
    INSERT INTO event_host.events (
        type, data, id, source, subject, "time",
        datacontenttype, dataschema, partitionkey, extensions)
    VALUES (
        publish.type,
        convert_to(publish.data::text, 'UTF8'),
        coalesce(publish.id, gen_random_uuid()::text),
        coalesce(publish.source, '/sql'),
        publish.subject,
        coalesce(publish."time", now()),
        CASE WHEN publish.data IS NULL THEN publish.datacontenttype
             ELSE coalesce(publish.datacontenttype, 'application/json') END,
        publish.dataschema,
        publish.partitionkey,
        publish.extensions)
    RETURNING position INTO drawn;
    RETURN drawn;
END
$$;

REVOKE ALL ON FUNCTION event_host.publish(
    text, jsonb, text, text, text, timestamptz, text, text, text, jsonb) FROM PUBLIC;

-- The hosts, as they show themselves with each heartbeat of their lock session.
CREATE TABLE event_host.hosts (
    id            text PRIMARY KEY,
    hostname      text NOT NULL,
    pid           bigint NOT NULL,
    seen_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The lock session's backend; a number of a process is used again, so the
    -- time at which it began belongs to it.
    backend_pid   integer,
    backend_start timestamptz,
    -- The groups that it waits for.
    standing_by   text[] NOT NULL DEFAULT '{}'
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE event_host.consumer_groups (
    name              text COLLATE "C" PRIMARY KEY,
    tenant            text NOT NULL,
    -- The patterns of the subscription.
    subscribe         text[] NOT NULL,
    -- The advisory lock whose holder leads the group.
    lock_key          bigint NOT NULL,
    -- The cursor: everything at or below it is settled.
    position          bigint NOT NULL
                      CONSTRAINT position_is_not_negative CHECK (position >= 0),
    -- The fencing token: whoever leads, or moves the cursor, raises it.
    epoch             bigint NOT NULL DEFAULT 0,
    -- The number of the last settlement. Each is committed only after the one
    -- before it, so that a copy that comes late, or twice, is refused.
    settled           bigint NOT NULL DEFAULT 0,
    leader            text,
    leader_since      timestamptz,
    state             text NOT NULL DEFAULT 'running'
                      CONSTRAINT state_is_running_paused_or_tripped CHECK (state IN ('running', 'paused', 'tripped')),
    -- Why it is paused or tripped.
    reason            text,
    -- What a host has to say of it though it goes on.
    remark            text,
    -- The event that is retried, if there is one.
    head_position     bigint,
    head_attempt      bigint,
    head_due_at       timestamptz,
    head_failure_kind text,
    head_failure_text text,
    head_in_flight    boolean NOT NULL DEFAULT false,
    -- The host that began the attempt that is in flight.
    head_begun_by     text,
    -- Leaderships in a row that settled nothing and did not end cleanly.
    fruitless         bigint NOT NULL DEFAULT 0,
    -- Failed attempts so far, by the kind of the failure.
    failures          jsonb NOT NULL DEFAULT '{}'
                      CONSTRAINT failures_are_an_object CHECK (jsonb_typeof(failures) = 'object'),
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    settled_at        timestamptz,
    CONSTRAINT a_head_is_whole CHECK (
        (head_position IS NULL) = (head_attempt IS NULL)
        AND (head_position IS NULL) = (head_due_at IS NULL)),
    CONSTRAINT a_failure_is_whole CHECK ((head_failure_kind IS NULL) = (head_failure_text IS NULL))
) WITH (
    -- Room for the next version of a row beside it, so that a settlement touches
    -- one page and no index.
    fillfactor = 50,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_cost_delay = 0
);

-- Events that a group's cursor has passed and that come again. The leader knows
-- them all and reads them once, so there is no index of those that are due: with
-- it no update could stay on its page.
CREATE TABLE event_host.redeliveries (
    group_name   text COLLATE "C" NOT NULL REFERENCES event_host.consumer_groups (name),
    position     bigint NOT NULL
                 CONSTRAINT position_is_above_zero CHECK (position > 0),
    -- The attempt that comes next, and when it may begin.
    attempt      bigint NOT NULL,
    due_at       timestamptz NOT NULL,
    partitionkey text,
    -- Why the attempt before failed, if there was one.
    failure_kind text,
    failure_text text,
    PRIMARY KEY (group_name, position),
    CONSTRAINT a_failure_is_whole CHECK ((failure_kind IS NULL) = (failure_text IS NULL))
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

-- The number of a dead letter that is gone must not come to mean another one:
-- an identity never goes back.
CREATE TABLE event_host.dead_letters (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    group_name      text COLLATE "C" NOT NULL REFERENCES event_host.consumer_groups (name),
    -- The event, whole, as it stood in the log.
    position        bigint NOT NULL,
    time            timestamptz NOT NULL,
    tenant          text NOT NULL,
    deliver_to      text,
    type            text NOT NULL,
    event_id        text NOT NULL,
    source          text NOT NULL,
    subject         text,
    datacontenttype text,
    dataschema      text,
    partitionkey    text,
    extensions      jsonb,
    data            bytea,
    -- Why the group gave up on it.
    attempts        bigint NOT NULL,
    failure_kind    text NOT NULL,
    failure_text    text NOT NULL,
    digest          text NOT NULL,
    dead_at         timestamptz NOT NULL
);

CREATE INDEX dead_letters_of_a_group ON event_host.dead_letters (group_name, id);

CREATE TABLE event_host.state (
    group_name text COLLATE "C" NOT NULL REFERENCES event_host.consumer_groups (name),
    scope      text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    value      bytea NOT NULL,
    PRIMARY KEY (group_name, scope, key)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0.05
);

-- Components that were deployed, each once, whoever deployed it. The bytes are
-- never anything but what their digest says.
CREATE TABLE event_host.components (
    digest   text COLLATE "C" PRIMARY KEY,
    size     bigint NOT NULL
             CONSTRAINT size_is_that_of_the_bytes CHECK (size = octet_length(bytes)),
    added_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    bytes    bytea NOT NULL,
    CONSTRAINT digest_is_that_of_the_bytes CHECK (digest = 'sha256:' || encode(sha256(bytes), 'hex'))
);

-- The versions of the handlers whose component is deployed. Whoever adds a
-- version or changes a state locks version 1 first.
CREATE TABLE event_host.deployments (
    tenant      text COLLATE "C" NOT NULL,
    handler     text COLLATE "C" NOT NULL,
    version     bigint NOT NULL
                CONSTRAINT version_is_above_zero CHECK (version > 0),
    digest      text COLLATE "C" NOT NULL REFERENCES event_host.components (digest),
    deployed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    deployed_by text NOT NULL,
    state       text NOT NULL
                CONSTRAINT state_is_active_previous_or_rolled_back CHECK (state IN ('active', 'previous', 'rolled-back')),
    PRIMARY KEY (tenant, handler, version)
);

-- All that a host reads again and again, without the rest of the table.
CREATE UNIQUE INDEX one_version_is_active ON event_host.deployments (tenant, handler)
    INCLUDE (version, digest) WHERE state = 'active';

-- Which cluster the log was written in. A log that finds itself in another one
-- was restored there, and its events may have been handled elsewhere since.
CREATE TABLE event_host.home (
    only_one          boolean PRIMARY KEY DEFAULT true CONSTRAINT there_is_only_one CHECK (only_one),
    system_identifier bigint NOT NULL,
    adopted_at        timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- A look at the end of the log; its statements run one after the other, which
-- is what it is for:
-- 1. `last_position`: the last position that was drawn; where that is `known`,
--    at or below which all is decided, there is nothing more to see, and the
--    locks of the whole server are not read in vain;
-- 2. then `writers`: every transaction that holds the lock of an insert on the
--    log. An insert takes that lock before it draws its position and keeps it
--    until its event is visible, or gone. So once none of them is left, no event
--    can still appear at or below `last_position`. Prepared transactions have no
--    process, so transactions are named by their virtual ids;
-- 3. then, where nobody writes and `last_position` is news, `last_event`: the
--    last position up to there that holds an event, if one of the last 100,000
--    does, and else the position before those. What was rolled back stays in the
--    index for a while, and nobody shall wait until millions of it are passed.
-- Roles: it runs with the rights of its caller, who needs SELECT on the log and
-- on its sequence.
CREATE FUNCTION event_host.look_at_the_end(
    known             bigint,
    OUT last_position bigint,
    OUT writers       text[],
    OUT last_event    bigint
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    SELECT CASE WHEN s.is_called THEN s.last_value ELSE s.last_value - 1 END
    INTO last_position
    FROM event_host.events_position_seq s;

    IF last_position = known THEN
        writers := '{}';
        RETURN;
    END IF;

    SELECT coalesce(array_agg(DISTINCT l.virtualtransaction), '{}')
    INTO writers
    FROM pg_lock_status() l
    WHERE l.locktype = 'relation'
      AND l.relation = 'event_host.events'::regclass
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
      AND l.mode = 'RowExclusiveLock'
      AND l.granted;

    IF writers = '{}' AND last_position IS DISTINCT FROM known THEN
        SELECT coalesce(max(e.position), greatest(last_position - 100000, 0)) INTO last_event
        FROM event_host.events e
        WHERE e.position > last_position - 100000 AND e.position <= last_position;
    END IF;
END
$$;

REVOKE ALL ON FUNCTION event_host.look_at_the_end(bigint) FROM PUBLIC;
