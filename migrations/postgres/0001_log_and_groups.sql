-- The log, the consumer groups and what hangs on them, and the components that
-- are deployed, in the schema `event_host`, which the migrator has made.
--
-- The names of constraints are what a client is shown when it breaks them.
-- Nothing here relies on a search_path: every name is written in full.

-- Positions are drawn from here, and here alone. CACHE 1, because a session that
-- drew positions ahead would use them after higher ones have been handled.
CREATE SEQUENCE event_host.events_position_seq AS bigint CACHE 1;

-- The default of a position. A partitioned table has identity columns only from
-- PostgreSQL 17 on. SECURITY DEFINER, so that whoever may insert needs no right
-- to the sequence, which would let it ask for more than the next number. No
-- search_path is pinned, because each insert would pay for it and nothing here is
-- looked up by one. In plpgsql, which keeps its plan from one call to the next.
CREATE FUNCTION event_host.next_position() RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
BEGIN
    RETURN pg_catalog.nextval('event_host.events_position_seq'::pg_catalog.regclass);
END
$$;

REVOKE ALL ON FUNCTION event_host.next_position() FROM PUBLIC;

-- The last position that was drawn, whether it holds an event or not.
--
-- Nothing reads `last_value` from the sequence as from a table. Such a read looks at
-- the row without the lock of its buffer, and nextval() lets it show a value 32 too
-- high for as long as it takes to write a WAL record: positions that nobody has drawn.
-- pg_sequence_last_value() waits for that lock. It gives NULL while nothing was drawn,
-- or since somebody set where the sequence begins. Then the row says where that is,
-- and nobody was writing it if it is still so afterwards.
-- Roles: it runs with the rights of its caller, who needs SELECT on the sequence.
CREATE FUNCTION event_host.last_drawn() RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    last bigint;
BEGIN
    LOOP
        last := pg_sequence_last_value('event_host.events_position_seq'::regclass);
        IF last IS NOT NULL THEN
            RETURN last;
        END IF;
        SELECT s.last_value - 1 INTO last FROM event_host.events_position_seq s;
        IF pg_sequence_last_value('event_host.events_position_seq'::regclass) IS NULL THEN
            RETURN last;
        END IF;
    END LOOP;
END
$$;

REVOKE ALL ON FUNCTION event_host.last_drawn() FROM PUBLIC;

-- Whether a row of the log is an event: of CloudEvents' rules for attributes all that
-- can be said of them one by one, and how large they may be. The host has the same
-- rules and the same bounds for what comes to it. Names the rule that is broken as a
-- constraint.
--
-- One function and not a constraint for each rule: a statement reads and plans each
-- constraint anew, which takes a producer's single insert longer than all the rest of
-- it. Whatever search_path its caller has, it does what stands here, because it looks
-- nothing up by one: each name is written in full, and there is no operator.
CREATE FUNCTION event_host.is_event(
    type            text,
    id              text,
    source          text,
    subject         text,
    "time"          timestamptz,
    datacontenttype text,
    dataschema      text,
    partitionkey    text,
    extensions      jsonb,
    tenant          text,
    deliver_to      text
) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    broken text;
    json   text;
BEGIN
    broken := CASE
        WHEN pg_catalog.texteq(type, '') THEN 'type_is_not_empty'
        WHEN pg_catalog.int4gt(pg_catalog.octet_length(type), 1024) THEN 'type_has_1024_bytes_at_most'
        WHEN pg_catalog.texteq(id, '') THEN 'id_is_not_empty'
        WHEN pg_catalog.int4gt(pg_catalog.octet_length(id), 1024) THEN 'id_has_1024_bytes_at_most'
        WHEN pg_catalog.texteq(source, '') THEN 'source_is_not_empty'
        WHEN pg_catalog.int4gt(pg_catalog.octet_length(source), 1024) THEN 'source_has_1024_bytes_at_most'
        WHEN pg_catalog.texteq(subject, '') THEN 'subject_is_not_empty'
        WHEN pg_catalog.int4gt(pg_catalog.octet_length(subject), 8192) THEN 'subject_has_8192_bytes_at_most'
        WHEN pg_catalog.texteq(partitionkey, '') THEN 'partitionkey_is_not_empty'
        WHEN pg_catalog.int4gt(pg_catalog.octet_length(partitionkey), 1024) THEN 'partitionkey_has_1024_bytes_at_most'
        WHEN pg_catalog.int4gt(pg_catalog.octet_length(datacontenttype), 8192) THEN 'datacontenttype_has_8192_bytes_at_most'
        WHEN pg_catalog.int4gt(pg_catalog.octet_length(dataschema), 8192) THEN 'dataschema_has_8192_bytes_at_most'
        -- Neither control characters nor noncharacters: one look at all of them. Those
        -- that are left out may hold fewer characters anyway.
        WHEN pg_catalog.textregexeq(
                pg_catalog.textcat(pg_catalog.textcat(type, id),
                    pg_catalog.textcat(coalesce(subject, ''), coalesce(partitionkey, ''))),
                '[\u0001-\u001f\u007f-\u009f\ufdd0-\ufdef\ufffe\uffff\U0001FFFE\U0001FFFF\U0002FFFE\U0002FFFF\U0003FFFE\U0003FFFF\U0004FFFE\U0004FFFF\U0005FFFE\U0005FFFF\U0006FFFE\U0006FFFF'
                '\U0007FFFE\U0007FFFF\U0008FFFE\U0008FFFF\U0009FFFE\U0009FFFF\U000AFFFE\U000AFFFF\U000BFFFE\U000BFFFF\U000CFFFE\U000CFFFF'
                '\U000DFFFE\U000DFFFF\U000EFFFE\U000EFFFF\U000FFFFE\U000FFFFF\U0010FFFE\U0010FFFF]')
            THEN 'attributes_hold_no_control_characters'
        -- RFC 3986, section 4.1. The first pattern lets most sources by at half the cost.
        WHEN pg_catalog.textregexeq(source, '[^A-Za-z0-9._~/-]')
            AND pg_catalog.textregexne(source,
                '^(?:[A-Za-z][A-Za-z0-9+.-]*:(?:[][A-Za-z0-9._~:/?@!$&''()*+,;=-]|%[0-9A-Fa-f]{2})*'
                '|(?:[][A-Za-z0-9._~@!$&''()*+,;=-]|%[0-9A-Fa-f]{2})*(?:[/?](?:[][A-Za-z0-9._~:/?@!$&''()*+,;=-]|%[0-9A-Fa-f]{2})*)?)'
                '(?:#(?:[][A-Za-z0-9._~:/?@!$&''()*+,;=-]|%[0-9A-Fa-f]{2})*)?$')
            THEN 'source_is_a_uri_reference'
        WHEN pg_catalog.textregexne(dataschema,
                '^[A-Za-z][A-Za-z0-9+.-]*:(?:[][A-Za-z0-9._~:/?@!$&''()*+,;=-]|%[0-9A-Fa-f]{2})*'
                '(?:#(?:[][A-Za-z0-9._~:/?@!$&''()*+,;=-]|%[0-9A-Fa-f]{2})*)?$')
            THEN 'dataschema_is_an_absolute_uri'
        WHEN pg_catalog.textne(datacontenttype, 'application/json')
            AND pg_catalog.textregexne(datacontenttype,
                '^[!#$%&''*+.^_`|~0-9A-Za-z-]+/[!#$%&''*+.^_`|~0-9A-Za-z-]+[ \t]*'
                '(?:;[ \t]*[!#$%&''*+.^_`|~0-9A-Za-z-]+='
                '(?:[!#$%&''*+.^_`|~0-9A-Za-z-]+|"(?:[^\u0001-\u0008\u000a-\u001f\u007f-\u009f"\\]|\\[^\u0001-\u0008\u000a-\u001f\u007f-\u009f])*")[ \t]*)*$')
            THEN 'datacontenttype_is_a_media_type'
        WHEN NOT pg_catalog.isfinite("time")
            OR pg_catalog.timestamptz_gt("time", '9999-12-30 22:00:00+00')
            THEN 'time_is_finite_and_before_the_year_10000'
        -- The year 0, before which RFC 3339 has no times.
        WHEN pg_catalog.timestamptz_lt("time", '0001-01-01 00:00:00+00 BC')
            THEN 'time_is_not_before_the_year_0'
        WHEN pg_catalog.textne(tenant, '') AND (
                pg_catalog.int4gt(pg_catalog.octet_length(tenant), 128)
                OR pg_catalog.textregexne(tenant, '^[A-Za-z0-9][A-Za-z0-9_.-]*$'))
            THEN 'tenant_is_a_name_or_empty'
        WHEN pg_catalog.int4gt(pg_catalog.octet_length(deliver_to), 128)
            OR pg_catalog.textregexne(deliver_to, '^[A-Za-z0-9][A-Za-z0-9_.-]*$')
            THEN 'deliver_to_is_a_name_or_null'
    END;
    IF broken IS NULL AND extensions IS NOT NULL THEN
        broken := CASE
            WHEN pg_catalog.textne(pg_catalog.jsonb_typeof(extensions), 'object')
                THEN 'extensions_are_an_object'
            WHEN pg_catalog.jsonb_path_exists(extensions,
                    'strict $.keyvalue() ? (!(@.key like_regex "^[a-z0-9]+$"))')
                THEN 'extensions_have_names_of_a_to_z_and_digits'
            WHEN pg_catalog.jsonb_path_exists(extensions,
                    'strict $.* ? (@.type() != "string" && (@.type() == "object" || @.type() == "array"
                        || @.type() == "number" && (@ != @.floor() || @ < -2147483648 || @ > 2147483647)))')
                THEN 'extensions_are_booleans_integers_and_strings'
            WHEN pg_catalog.jsonb_exists_any(extensions, ARRAY[
                    'specversion', 'id', 'source', 'type', 'subject', 'time',
                    'datacontenttype', 'dataschema', 'partitionkey', 'deliverafter', 'data'])
                THEN 'extensions_are_no_attributes_of_their_own'
        END;
    END IF;
    IF broken IS NULL AND extensions IS NOT NULL THEN
        -- Only now, when no number in them can be long as text.
        json := extensions::pg_catalog.text;
        broken := CASE
            WHEN pg_catalog.int4gt(pg_catalog.octet_length(json), 65536)
                THEN 'extensions_have_65536_bytes_of_json_at_most'
            -- In JSON a control character below U+0020 is written with a backslash, which
            -- stands before nothing else but a quote and itself.
            WHEN pg_catalog.textregexeq(json,
                    '[\\\u0001-\u001f\u007f-\u009f\ufdd0-\ufdef\ufffe-\U0010ffff]')
                AND pg_catalog.textregexne(json,
                    '^(?:[^\\\u0001-\u001f\u007f-\u009f\ufdd0-\ufdef\ufffe\uffff\U0001FFFE\U0001FFFF\U0002FFFE\U0002FFFF\U0003FFFE\U0003FFFF\U0004FFFE\U0004FFFF\U0005FFFE\U0005FFFF\U0006FFFE\U0006FFFF'
                    '\U0007FFFE\U0007FFFF\U0008FFFE\U0008FFFF\U0009FFFE\U0009FFFF\U000AFFFE\U000AFFFF\U000BFFFE\U000BFFFF\U000CFFFE\U000CFFFF'
                    '\U000DFFFE\U000DFFFF\U000EFFFE\U000EFFFF\U000FFFFE\U000FFFFF\U0010FFFE\U0010FFFF]|\\["\\])*$')
                THEN 'extensions_hold_no_control_characters'
        END;
    END IF;
    IF broken IS NOT NULL THEN
        RAISE check_violation USING
            MESSAGE = pg_catalog.format('this is no event: it violates "%s"', broken),
            CONSTRAINT = broken, SCHEMA = 'event_host', TABLE = 'events';
    END IF;
    RETURN true;
END
$$;

-- Whoever inserts calls it.
GRANT EXECUTE ON FUNCTION event_host.is_event(
    text, text, text, text, timestamptz, text, text, text, jsonb, text, text) TO PUBLIC;

-- The log. Any client that may insert does so in its own transaction; `type` is
-- all that it must give:
--     INSERT INTO event_host.events (type, data) VALUES ('invoice.paid', '{"id": 7}');
--
-- Its partitions are there to be emptied and dropped, which costs the same
-- however many events they hold and leaves nothing to vacuum; see "Retention"
-- below. Values of fixed width stand first, so that none needs padding.
CREATE TABLE event_host.events (
    position        bigint NOT NULL DEFAULT event_host.next_position() PRIMARY KEY,
    -- CloudEvents' `time`: when it happened.
    time            timestamptz NOT NULL DEFAULT now(),
    -- When it was appended.
    published_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- When it is delivered at the earliest; NULL for at once.
    deliver_after   timestamptz
                    -- As `time`: neither is text of RFC 3339 outside of these years.
                    CONSTRAINT deliver_after_is_in_the_years_0_to_9999 CHECK (
                        deliver_after BETWEEN '0001-01-01 00:00:00+00 BC' AND '9999-12-30 22:00:00+00')
                    -- The host allows 366 days; a day more is for clocks that differ. In
                    -- hours, which are the same in each time zone.
                    CONSTRAINT deliver_after_is_within_a_year CHECK (
                        deliver_after <= published_at + interval '8808 hours'),
    tenant          text NOT NULL DEFAULT '',
    -- The one group that receives the event; NULL for all that subscribe.
    deliver_to      text,
    -- The component that handles it instead of the group's own, where a replay
    -- names one.
    digest          text
                    CONSTRAINT digest_is_that_of_a_component_or_null CHECK (
                        digest IS NULL OR digest ~ '^sha256:[0-9a-f]{64}$' AND deliver_to IS NOT NULL),
    type            text NOT NULL,
    id              text NOT NULL DEFAULT gen_random_uuid()::text,
    source          text NOT NULL DEFAULT '/sql',
    subject         text,
    datacontenttype text,
    dataschema      text,
    partitionkey    text,
    -- Every other extension attribute: an object of booleans, integers and
    -- strings.
    extensions      jsonb,
    data            bytea,
    CONSTRAINT it_is_an_event CHECK (event_host.is_event(
        type, id, source, subject, time, datacontenttype, dataschema, partitionkey,
        extensions, tenant, deliver_to))
) PARTITION BY RANGE (position);

ALTER SEQUENCE event_host.events_position_seq OWNED BY event_host.events.position;

-- Nobody gives an event a position of its own, not even the owner: whoever may
-- insert may insert every column but that one. (A superuser may do anything.)
DO $$
DECLARE
    columns text;
BEGIN
    SELECT string_agg(quote_ident(a.attname), ', ') INTO columns
    FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = 'event_host.events'::regclass AND a.attnum > 0 AND a.attname <> 'position';
    REVOKE INSERT ON event_host.events FROM CURRENT_USER;
    EXECUTE format('GRANT INSERT (%s) ON event_host.events TO CURRENT_USER', columns);
END
$$;

-- What is in the log stays as it is until the retention empties its partition, which says
-- so in a setting of its own. That keeps nobody out who means to: it is for the owner's
-- mistakes, as nobody else has any of these rights. (A superuser who must remove an event
-- sets session_replication_role to replica.)
CREATE FUNCTION event_host.refuse_change() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        RAISE EXCEPTION 'events are never changed: insert a new one';
    ELSIF TG_OP = 'TRUNCATE' AND current_setting('event_host.emptying', true) = TG_TABLE_NAME THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'events are never deleted by hand: a retention lets go of those that every group has handled';
END
$$;

-- Once a statement, and never for an insert.
CREATE TRIGGER events_are_never_changed
BEFORE UPDATE OR DELETE OR TRUNCATE ON event_host.events
FOR EACH STATEMENT EXECUTE FUNCTION event_host.refuse_change();

-- Makes a partition of the log and attaches it. `bounds` is a partition bound
-- specification.
--
-- Attached, and not made with PARTITION OF, which would lock the whole log: no
-- producer is in the way of this, nor this in any producer's. It looks through
-- the default partition, and waits for whoever reads that.
CREATE FUNCTION event_host.add_partition(name text, bounds text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- A reader that filters by type reads every row that it looks at, so a frozen
    -- and all-visible log is worth an early vacuum; nothing here ever dies but
    -- what was rolled back. Without defaults, and without the right to insert,
    -- because events are inserted into the log and not into a partition.
    EXECUTE format(
        'CREATE TABLE event_host.%I (LIKE event_host.events
             INCLUDING CONSTRAINTS INCLUDING STORAGE INCLUDING COMPRESSION)
         WITH (autovacuum_vacuum_insert_scale_factor = 0.05)', name);
    EXECUTE format('REVOKE INSERT ON event_host.%I FROM CURRENT_USER', name);
    EXECUTE format(
        'CREATE TRIGGER events_are_never_changed
         BEFORE UPDATE OR DELETE OR TRUNCATE ON event_host.%I
         FOR EACH STATEMENT EXECUTE FUNCTION event_host.refuse_change()', name);
    EXECUTE format('ALTER TABLE event_host.events ATTACH PARTITION event_host.%I %s', name, bounds);
END
$$;

REVOKE ALL ON FUNCTION event_host.add_partition(text, text) FROM PUBLIC;

-- Whatever stands in no other partition, so that an insert never fails for want
-- of one. Nothing does, unless somebody moves the sequence.
SELECT event_host.add_partition('events_elsewhere', 'DEFAULT');

-- Publishes an event in the caller's transaction and gives its position.
--
-- SECURITY DEFINER, so that a role that may execute it needs no right to the
-- table; the search_path is pinned, so that it does what stands here whoever
-- calls it. `data` is kept as jsonb prints it: spaces, the order of keys and the
-- first of two equal ones are not those of the caller. TIME is a word of SQL's own, so as
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
    extensions      jsonb       DEFAULT NULL,
    deliver_after   timestamptz DEFAULT NULL
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
        datacontenttype, dataschema, partitionkey, extensions, deliver_after)
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
        publish.extensions,
        publish.deliver_after)
    RETURNING position INTO drawn;
    RETURN drawn;
END
$$;

REVOKE ALL ON FUNCTION event_host.publish(
    text, jsonb, text, text, text, timestamptz, text, text, text, jsonb, timestamptz) FROM PUBLIC;

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
    -- The advisory lock that the session took before it wrote this, and holds until it
    -- ends. Each session draws a key of its own, so one whose lock is free, or held by
    -- another process, is over for ever. NULL once that was found out.
    lock_key      bigint,
    -- What does not work for it, one thing a line, and when it said so last.
    trouble       text,
    troubled_at   timestamptz
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
    -- Into how many parts its events are split. With more than one, each has a row
    -- of its own, which is led like a group and is called by the group's name, a #
    -- and its number from 0 on; and the group's row has what belongs to all of them:
    -- dead letters, state and what an operator says of it, and no cursor in use.
    partitions        integer NOT NULL DEFAULT 1
                      CONSTRAINT there_are_partitions CHECK (partitions >= 1),
    -- In the row of a partition: the group, with which it goes, and its number. One
    -- that is not below `partitions` is of a time when there were more; it is kept, so
    -- that its epochs never come again.
    part_of           text COLLATE "C" REFERENCES event_host.consumer_groups (name) ON DELETE CASCADE,
    partition         integer,
    -- The cursor: everything at or below it is settled.
    position          bigint NOT NULL
                      CONSTRAINT position_is_not_negative CHECK (position >= 0),
    -- The fencing token: whoever leads, or moves the cursor, raises it.
    epoch             bigint NOT NULL DEFAULT 0,
    -- The number of the last settlement. Each is committed only after the one
    -- before it, so that a copy that comes late, or twice, is refused.
    settled           bigint NOT NULL DEFAULT 0,
    -- What the cursor has passed though transactions were open that may still commit
    -- something there; NULL for nothing.
    open_ranges       int8multirange
                      CONSTRAINT open_ranges_are_some_or_null CHECK (NOT isempty(open_ranges)),
    -- How many events were committed there so far.
    late_events       bigint NOT NULL DEFAULT 0,
    -- Events that were handled successfully, and that became dead letters, so far.
    handled_events    bigint NOT NULL DEFAULT 0,
    dead_events       bigint NOT NULL DEFAULT 0,
    leader            text,
    leader_since      timestamptz,
    -- The lock_key of the leader's session. Others may claim the group once that session is
    -- over; NULL where nobody leads it.
    leader_key        bigint,
    state             text NOT NULL DEFAULT 'running'
                      CONSTRAINT state_is_running_paused_or_tripped CHECK (state IN ('running', 'paused', 'tripped')),
    -- Why it is paused or tripped.
    reason            text,
    -- It keeps nothing in the log: its tenant may not keep as much as it did. Only while it
    -- is paused.
    unpinned          boolean NOT NULL DEFAULT false,
    -- What a host has to say of it though it goes on.
    remark            text,
    -- The event that is retried, if there is one.
    head_position     bigint,
    head_attempt      bigint,
    head_due_at       timestamptz,
    head_failure_kind text,
    head_failure_text text,
    -- The attempt that was recorded as begun, by a leader that goes on one event at a
    -- time after crashes, and the host that began it. In columns of its own: the event
    -- need not be the one that is retried.
    mark_position     bigint,
    mark_attempt      bigint,
    mark_begun_by     text,
    -- Leaderships in a row that settled nothing and did not end cleanly.
    fruitless         bigint NOT NULL DEFAULT 0,
    -- Failed attempts so far, by the kind of the failure.
    failures          jsonb NOT NULL DEFAULT '{}'
                      CONSTRAINT failures_are_an_object CHECK (jsonb_typeof(failures) = 'object'),
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    settled_at        timestamptz,
    CONSTRAINT open_ranges_are_passed CHECK (
        lower(open_ranges) > 0 AND upper(open_ranges) - 1 <= position),
    CONSTRAINT a_head_is_whole CHECK (
        (head_position IS NULL) = (head_attempt IS NULL)
        AND (head_position IS NULL) = (head_due_at IS NULL)),
    CONSTRAINT a_failure_is_whole CHECK ((head_failure_kind IS NULL) = (head_failure_text IS NULL)),
    CONSTRAINT a_mark_is_whole CHECK ((mark_position IS NULL) = (mark_attempt IS NULL)),
    CONSTRAINT a_partition_is_called_by_its_group CHECK (
        (part_of IS NULL) = (strpos(name, '#') = 0)
        AND (part_of IS NULL) = (partition IS NULL)
        AND (part_of IS NULL OR name = part_of || '#' || partition))
) WITH (
    -- Room for the next version of a row beside it, so that a settlement touches
    -- one page and no index.
    fillfactor = 50,
    autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX partitions_of_a_group ON event_host.consumer_groups (part_of)
WHERE part_of IS NOT NULL;

-- Which host leads or would lead which groups.
CREATE TABLE event_host.host_groups (
    group_name text COLLATE "C" NOT NULL,
    host       text NOT NULL REFERENCES event_host.hosts (id) ON DELETE CASCADE,
    PRIMARY KEY (group_name, host)
);

-- What one host at a time does on behalf of all, and the lock_key of the session of the host
-- that has the duty. Others may claim it once that session is over; NULL where nobody has it.
CREATE TABLE event_host.duties (
    name       text PRIMARY KEY,
    holder     text,
    holder_key bigint,
    held_since timestamptz
);
-- To look at everything that is true of the database, for its metrics.
INSERT INTO event_host.duties (name) VALUES ('overview');

-- Rises with every change of what hosts watch of groups: epoch, state and leader, and who
-- would lead them. So a host that reads the number need not read the groups while it stays.
CREATE TABLE event_host.control_version (
    only_one boolean PRIMARY KEY DEFAULT true CONSTRAINT there_is_only_one CHECK (only_one),
    version  bigint NOT NULL
) WITH (fillfactor = 10);
INSERT INTO event_host.control_version (version) VALUES (0);

-- Once a transaction, and at its end: until it ends, all others who change a group wait for
-- the row. As its owner, because whoever may change a group need not own the number.
CREATE FUNCTION event_host.raise_control_version() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- Others have it for no longer than their commit takes.
SET lock_timeout = '10s'
AS $$
DECLARE
    here text := pg_current_xact_id()::text;
BEGIN
    IF current_setting('event_host.raised_by', true) IS DISTINCT FROM here THEN
        UPDATE event_host.control_version SET version = version + 1;
        PERFORM set_config('event_host.raised_by', here, true);
    END IF;
    RETURN NULL;
END
$$;

REVOKE ALL ON FUNCTION event_host.raise_control_version() FROM PUBLIC;

-- A settlement sets none of these columns but where it trips its group.
CREATE CONSTRAINT TRIGGER groups_changed
AFTER INSERT OR DELETE OR UPDATE OF epoch, state, leader ON event_host.consumer_groups
DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION event_host.raise_control_version();

CREATE CONSTRAINT TRIGGER hosts_changed
AFTER INSERT OR DELETE ON event_host.host_groups
DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION event_host.raise_control_version();

-- Events that a group's cursor has passed and that come again. The leader knows them all and reads them once, so there is no
-- index of those that are due: with it no update could stay on its page.
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
    -- It was committed after the cursor had passed it.
    late         boolean NOT NULL DEFAULT false,
    PRIMARY KEY (group_name, position),
    CONSTRAINT a_failure_is_whole CHECK ((failure_kind IS NULL) = (failure_text IS NULL))
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

-- Events that a group's cursor has passed and that are to be delivered later, whole, so
-- that the log need not keep them. The leader reads those that are due, and knows of the
-- others when the first is. One that failed is a redelivery besides. A row is gone once
-- its event is handled or given up.
CREATE TABLE event_host.deferred (
    group_name      text COLLATE "C" NOT NULL REFERENCES event_host.consumer_groups (name),
    position        bigint NOT NULL
                    CONSTRAINT position_is_above_zero CHECK (position > 0),
    due_at          timestamptz NOT NULL,
    time            timestamptz NOT NULL,
    deliver_after   timestamptz,
    -- It was committed after the cursor had passed it.
    late            boolean NOT NULL DEFAULT false,
    deliver_to      text,
    digest          text,
    type            text NOT NULL,
    id              text NOT NULL,
    source          text NOT NULL,
    subject         text,
    datacontenttype text,
    dataschema      text,
    partitionkey    text,
    extensions      jsonb,
    data            bytea,
    PRIMARY KEY (group_name, position)
) WITH (
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX deferred_by_time ON event_host.deferred (group_name, due_at, position);

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
    deliver_after   timestamptz,
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

-- Schedules, whose ticks are events: up to where each is done. A host moves one from
-- where it knows it, in the transaction that appends the event of a tick, so that each
-- tick is published once. What stands in the events, the hosts' settings say.
CREATE TABLE event_host.schedules (
    name      text COLLATE "C" PRIMARY KEY,
    tenant    text NOT NULL,
    -- As the host has them that registered it last.
    cron      text NOT NULL,
    timezone  text NOT NULL,
    -- Each tick up to here is published or left out.
    done_to   timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The last one that was published.
    last_tick timestamptz,
    -- When a host last had it.
    seen_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Which cluster the log was written in. A log that finds itself in another one
-- was restored there, and its events may have been handled elsewhere since.
CREATE TABLE event_host.home (
    only_one          boolean PRIMARY KEY DEFAULT true CONSTRAINT there_is_only_one CHECK (only_one),
    system_identifier bigint NOT NULL,
    adopted_at        timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Which incarnation of the server the log is in: one row, or none. It is not
-- WAL-logged, so every recovery empties it, that of a crash and that of a standby
-- which is promoted, and a clean stop does not. Whoever finds it empty begins the
-- incarnation, and raises the epoch of every group in the same transaction: what was
-- known of the log before, and may have been lost since, can then no longer be settled.
-- A dump has the row, and a restore brings it back: so the numbers of this table and of
-- its database belong to what a host knows an incarnation by.
CREATE UNLOGGED TABLE event_host.incarnation (
    only_one boolean PRIMARY KEY DEFAULT true CONSTRAINT there_is_only_one CHECK (only_one),
    token    text NOT NULL DEFAULT gen_random_uuid()::text,
    begun_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

INSERT INTO event_host.incarnation DEFAULT VALUES;

-- The transactions that hold the lock of an insert on the log or on one of its
-- partitions, by their virtual ids.
CREATE FUNCTION event_host.who_inserts() RETURNS text[]
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (
        SELECT coalesce(array_agg(DISTINCT l.virtualtransaction), '{}')
        FROM pg_lock_status() l
        WHERE l.locktype = 'relation'
          AND l.relation = ANY (ARRAY(
                  SELECT i.inhrelid FROM pg_inherits i WHERE i.inhparent = 'event_host.events'::regclass)
              || 'event_host.events'::regclass::oid)
          AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
          AND l.mode = 'RowExclusiveLock'
          AND l.granted);
END
$$;

REVOKE ALL ON FUNCTION event_host.who_inserts() FROM PUBLIC;

-- A look at the end of the log; its statements run one after the other, which
-- is what it is for:
-- 0. `token` and `started_at`: which incarnation of the server it is a look at. There
--    is no token where no host has begun it, as on a standby;
-- 1. `last_position`: the last position that was drawn; where that is `known`,
--    at or below which all is decided, there is nothing more to see;
-- 2. then `filled_to`: the highest position to which each one above `known` holds an
--    event that is visible. Nothing else can appear there, whoever writes, and to find
--    that out costs next to nothing, where the locks of the whole server cost more the
--    more sessions it has. It looks at 1,000 positions at most;
-- 3. then, where something is not decided by that and it is asked for, `writers`: every transaction that holds the lock of an insert on the
--    log, or on one of its partitions, where its owner may insert. An insert takes
--    that lock before it draws its position and keeps it until its event is
--    visible, or gone. So once none of them is left, no event
--    can still appear at or below `last_position`. Prepared transactions have no
--    process, so transactions are named by their virtual ids;
-- 4. then, where nobody writes and `last_position` is news, `last_event`: the
--    last position up to there that holds an event, if one of the last 100,000
--    does, and else the position before those. What was rolled back stays in the
--    index for a while, and nobody shall wait until millions of it are passed.
-- Roles: it runs with the rights of its caller, who needs SELECT on the log and
-- on its sequence, and `last_drawn()` and `who_inserts()`.
CREATE FUNCTION event_host.look_at_the_end(
    known             bigint,
    with_writers      boolean DEFAULT true,
    OUT token         text,
    OUT started_at    timestamptz,
    OUT last_position bigint,
    OUT filled_to     bigint,
    OUT writers       text[],
    OUT last_event    bigint
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    started_at := pg_postmaster_start_time();
    -- A standby cannot read what is not WAL-logged.
    IF NOT pg_is_in_recovery() THEN
        SELECT i.token || '/' || i.tableoid || '/' || d.oid INTO token
        FROM event_host.incarnation i, pg_database d WHERE d.datname = current_database();
    END IF;

    last_position := coalesce(
        pg_sequence_last_value('event_host.events_position_seq'::regclass),
        event_host.last_drawn());

    filled_to := known;
    IF last_position = known THEN
        writers := '{}';
        RETURN;
    END IF;

    SELECT coalesce(max(n.position), known) INTO filled_to
    FROM (SELECT e.position, row_number() OVER (ORDER BY e.position) AS place
          FROM (SELECT ev.position FROM event_host.events ev
                WHERE ev.position > known AND ev.position <= last_position
                ORDER BY ev.position LIMIT 1000) e) n
    WHERE n.position = known + n.place;
    IF filled_to = last_position THEN
        writers := '{}';
        last_event := last_position;
        RETURN;
    END IF;

    IF NOT with_writers THEN
        RETURN;
    END IF;
    writers := event_host.who_inserts();

    IF writers = '{}' AND last_position IS DISTINCT FROM known THEN
        SELECT coalesce(max(e.position), greatest(last_position - 100000, 0)) INTO last_event
        FROM event_host.events e
        WHERE e.position > last_position - 100000 AND e.position <= last_position;
    END IF;
END
$$;

REVOKE ALL ON FUNCTION event_host.look_at_the_end(bigint, boolean) FROM PUBLIC;

-- Hosts that only seem to live.
--
-- Anybody who may log in can take an advisory lock, and everybody sees its key. So a lock
-- only shows that the session of its host lives, and keeps no group from being led: this
-- looks who holds the locks of the other hosts. A host that lives holds its own, and shows
-- itself each second. One that is silent has its session ended, where the caller may do
-- that. One whose lock is free, or held by somebody else, has no session any more, because a
-- session takes its lock before it writes the key down, never gives it back while it lives,
-- and no other session ever has the same key. Whoever is found to be over has its key taken
-- from its row: from then on its groups may be claimed, whoever holds that lock, and a
-- session that lives on after all, because nobody may end it, is refused by its next word.
--
-- Of the row of a host that somebody has locked nothing is changed before the next time;
-- nothing here waits.
--
-- Gives each host that was found, and each session that holds its lock.
CREATE FUNCTION event_host.contest_hosts(caller text, silent_after double precision)
RETURNS TABLE (
    hostname       text,
    host_pid       bigint,
    silent_seconds double precision,
    -- How many groups it led, and the first of them.
    groups         bigint,
    group_name     text,
    -- The process that holds its lock, and whether it is the host's own.
    pid            integer,
    is_its_own     boolean,
    -- The name of the prepared transaction that holds it.
    prepared       text,
    application    text,
    username       text,
    ended          boolean,
    -- Its groups may be claimed.
    is_over        boolean
)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = on
SET enable_hashjoin = on
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    here    oid := (SELECT d.oid FROM pg_database d WHERE d.datname = current_database());
    suspect record;
    holder  record;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'hosts are contested in transactions that read what is committed, and not in % ones',
            current_setting('transaction_isolation') USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;

    -- The rows are as of the beginning of the statement, and the locks are looked at later:
    -- whoever had written its key down by then held its lock, if it still lives.
    FOR suspect IN
        SELECT h.id, h.hostname, h.pid, h.lock_key, h.backend_pid, h.seen_at, l.pids,
               h.backend_pid = ANY (l.pids) AS holds
        FROM event_host.hosts h
        LEFT JOIN (
            SELECT (s.classid::bigint << 32) | s.objid::bigint AS key, array_agg(coalesce(s.pid, 0)) AS pids
            FROM pg_lock_status() s
            WHERE s.locktype = 'advisory' AND s.objsubid = 1 AND s.granted AND s.database = here
            GROUP BY 1) l ON l.key = h.lock_key
        WHERE h.id <> caller AND h.lock_key IS NOT NULL
    LOOP
        -- One that is silent is let be while nobody waits for what it has.
        CONTINUE WHEN suspect.holds
            AND (suspect.seen_at >= clock_timestamp() - make_interval(secs => silent_after)
                 OR NOT EXISTS (
                     SELECT FROM event_host.consumer_groups g
                     JOIN event_host.host_groups r ON r.group_name = g.name AND r.host = caller
                     WHERE g.leader_key = suspect.lock_key)
                 AND NOT EXISTS (
                     SELECT FROM event_host.duties d WHERE d.holder_key = suspect.lock_key));

        hostname := suspect.hostname;
        host_pid := suspect.pid;
        silent_seconds := extract(epoch FROM clock_timestamp() - suspect.seen_at);
        SELECT count(*), min(g.name) INTO groups, group_name
        FROM event_host.consumer_groups g WHERE g.leader_key = suspect.lock_key;

        is_over := false;
        PERFORM FROM event_host.hosts h
        WHERE h.id = suspect.id AND h.lock_key = suspect.lock_key
          AND (suspect.holds IS NOT TRUE
               OR h.seen_at < clock_timestamp() - make_interval(secs => silent_after))
        FOR NO KEY UPDATE SKIP LOCKED;
        IF FOUND THEN
            UPDATE event_host.hosts SET lock_key = NULL WHERE id = suspect.id;
            is_over := true;
        ELSIF suspect.holds THEN
            -- It may have shown itself meanwhile.
            CONTINUE;
        END IF;

        -- Whoever may not end a session is refused, which would undo all of this. A host
        -- that claims the groups of another holds the lock of that for a moment.
        FOR holder IN
            SELECT p.pid, p.pid = suspect.backend_pid AS is_its_own, a.application_name,
                   coalesce(theirs.rolname, x.owner, '')::text AS username, x.gid,
                   (me.rolsuper OR NOT theirs.rolsuper)
                   AND (pg_has_role(theirs.oid, 'USAGE') OR pg_has_role('pg_signal_backend', 'USAGE')) AS may_be_ended
            FROM unnest(suspect.pids) p (pid)
            JOIN pg_roles me ON me.rolname = current_user
            LEFT JOIN pg_stat_get_activity(NULL) a ON a.pid = p.pid
            LEFT JOIN pg_roles theirs ON theirs.oid = a.usesysid
            -- A prepared transaction has no process; it is known by its number, on which it
            -- holds a lock.
            LEFT JOIN (
                SELECT l.classid, l.objid, t.gid, t.owner
                FROM pg_lock_status() l
                JOIN pg_lock_status() own ON own.virtualtransaction = l.virtualtransaction
                                         AND own.locktype = 'transactionid'
                JOIN pg_prepared_xacts t ON t.transaction = own.transactionid
                WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.pid IS NULL
            ) x ON p.pid = 0 AND (x.classid::bigint << 32) | x.objid::bigint = suspect.lock_key
            WHERE p.pid = suspect.backend_pid
               OR NOT EXISTS (SELECT FROM event_host.hosts h WHERE h.backend_pid = p.pid)
        LOOP
            pid := nullif(holder.pid, 0);
            is_its_own := coalesce(holder.is_its_own, false);
            prepared := holder.gid;
            application := coalesce(holder.application_name, '');
            username := holder.username;
            ended := coalesce(holder.may_be_ended, false) AND pg_terminate_backend(holder.pid);
            RETURN NEXT;
        END LOOP;
    END LOOP;
END
$$;

REVOKE ALL ON FUNCTION event_host.contest_hosts(text, double precision) FROM PUBLIC;

-- Retention.
--
-- Partition number n of the log holds the positions from n * 10^10 on, so it is
-- never full: a host that runs with a retention ends it when it is old or large
-- enough, by moving the sequence on to the next partition, which is there
-- already. So partitions are as large as the retention wants them and not as a
-- count of positions would have it, there are few of them, and producers need
-- nobody to make them. 10^10, because a position still shows which partition it
-- is in, and is exact in JSON's numbers until there have been 900,000.
--
-- To let events go has two steps. A partition is emptied under a lock on itself
-- alone, which no producer wants any more. What is left is dropped when the log
-- can be locked for a moment; the longest transaction of a producer delays no
-- more than that. No step waits for a lock for longer than 50 ms, because others
-- wait behind it meanwhile; whoever could not be had is asked again later. A host
-- needs these functions as it does not own the tables; they hold, whoever calls
-- them, that nothing goes that a group needs. One host is at it at a time.

CREATE VIEW event_host.partitions AS
SELECT c.oid AS relation, c.relname::text AS name, n.number,
       n.number * 10000000000 AS first_position,
       n.number * 10000000000 + 9999999999 AS last_position
FROM pg_catalog.pg_inherits i
JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
-- The default partition has none.
CROSS JOIN LATERAL (SELECT substring(c.relname FROM '^events_([0-9]+)$')::bigint AS number) n
WHERE i.inhparent = 'event_host.events'::regclass;

-- What keeps events in the log: of each group, the positions at or below which
-- nothing is needed, for its cursor, for the first event that comes again and is not
-- kept beside the log, and for the first position that it has passed and that may still
-- hold one. A group that is unpinned needs nothing.
CREATE VIEW event_host.log_pins AS
SELECT g.name AS group_name, g.position, g.tenant FROM event_host.consumer_groups g
-- What is split has no cursor of its own.
WHERE NOT g.unpinned AND CASE WHEN g.part_of IS NULL THEN g.partitions = 1
           ELSE g.partitions > 1 AND g.partition < g.partitions END
UNION ALL
SELECT g.name, lower(g.open_ranges) - 1, g.tenant FROM event_host.consumer_groups g
WHERE NOT g.unpinned AND g.open_ranges IS NOT NULL
UNION ALL
SELECT g.name, r.position - 1, g.tenant FROM event_host.consumer_groups g
CROSS JOIN LATERAL (
    SELECT f.position FROM event_host.redeliveries f
    WHERE f.group_name = g.name
      AND NOT EXISTS (SELECT FROM event_host.deferred d
                      WHERE d.group_name = f.group_name AND d.position = f.position)
    ORDER BY f.position LIMIT 1) r
WHERE NOT g.unpinned;

-- How long events are kept, as the hosts were last told: for `status`. No row
-- where they are kept for ever.
CREATE TABLE event_host.retention (
    only_one                boolean PRIMARY KEY DEFAULT true CONSTRAINT there_is_only_one CHECK (only_one),
    max_age_in_microseconds bigint,
    max_bytes               bigint
);

-- Whoever keeps the log holds the lock of this row. Not an advisory lock, which anybody
-- could hold who may log in: here it takes a right to the table, and only its owner has
-- one, as whom the functions below run.
CREATE TABLE event_host.log_keeper (
    only_one boolean PRIMARY KEY DEFAULT true CONSTRAINT there_is_only_one CHECK (only_one)
);
INSERT INTO event_host.log_keeper DEFAULT VALUES;

-- What has gone from the beginning of the log: every event at or below this position,
-- and how many, of which those of large partitions are estimated. No row while nothing
-- has.
CREATE TABLE event_host.gone (
    only_one boolean PRIMARY KEY DEFAULT true CONSTRAINT there_is_only_one CHECK (only_one),
    position bigint NOT NULL,
    events   bigint NOT NULL
);

-- Whether the caller is the one who keeps the log, until its transaction ends.
CREATE FUNCTION event_host.keeps_the_log() RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- What is looked at after a lock was taken must be what is there by then.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'the log is kept in transactions that read what is committed, and not in % ones',
            current_setting('transaction_isolation') USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    PERFORM FROM event_host.log_keeper FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
        RETURN true;
    END IF;
    IF NOT EXISTS (SELECT FROM event_host.log_keeper) THEN
        RAISE EXCEPTION 'event_host.log_keeper has lost its row: INSERT INTO event_host.log_keeper DEFAULT VALUES'
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    RETURN false;
END
$$;

REVOKE ALL ON FUNCTION event_host.keeps_the_log() FROM PUBLIC;

-- Makes a partition, if it is not there. Whether it did.
CREATE FUNCTION event_host.make_partition(number bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '50ms'
AS $$
BEGIN
    IF NOT event_host.keeps_the_log()
       OR to_regclass(format('event_host.events_%s', number)) IS NOT NULL THEN
        RETURN false;
    END IF;
    PERFORM event_host.add_partition(
        format('events_%s', number),
        format('FOR VALUES FROM (%s) TO (%s)',
            CASE number WHEN 0 THEN 'MINVALUE' ELSE (number * 10000000000)::text END,
            (number + 1) * 10000000000));
    RETURN true;
END
$$;

REVOKE ALL ON FUNCTION event_host.make_partition(bigint) FROM PUBLIC;

SELECT event_host.make_partition(0), event_host.make_partition(1);

-- Has events stand in a later partition from now on, if it is there. Whether it
-- did. Nothing is locked, and nobody notices.
CREATE FUNCTION event_host.begin_partition(number bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT event_host.keeps_the_log()
       OR NOT EXISTS (SELECT FROM event_host.partitions p WHERE p.number = begin_partition.number) THEN
        RETURN false;
    END IF;
    -- Others draw between the look at the sequence and its move, which must never
    -- be a move back. They draw no thousand million: where so few are left, the
    -- partition begins by itself soon enough.
    IF event_host.last_drawn() >= number * 10000000000 - 1000000000 THEN
        RETURN false;
    END IF;
    -- As if the position before it had been drawn: where a sequence begins is not
    -- what pg_sequence_last_value() tells.
    PERFORM setval('event_host.events_position_seq', number * 10000000000 - 1);
    RETURN true;
END
$$;

REVOKE ALL ON FUNCTION event_host.begin_partition(bigint) FROM PUBLIC;

-- Empties a partition, or without a number the default one, if nothing more will
-- be drawn in it and no group needs any of its events. Whether it did.
--
-- Safe, because the cursors are read once nobody else can read or write the
-- partition: whoever moves a cursor back, or makes a group, holds a lock on all of
-- the log while it does. Who has drawn a position in it and not yet inserted its
-- event does so afterwards, above every cursor.
CREATE FUNCTION event_host.empty_partition(number bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '50ms'
AS $$
DECLARE
    partition regclass;
    coming    bigint;
    last      bigint;
    events    bigint;
BEGIN
    IF NOT event_host.keeps_the_log() THEN
        RETURN false;
    END IF;
    SELECT p.relation INTO partition FROM event_host.partitions p
    WHERE p.number IS NOT DISTINCT FROM empty_partition.number;
    coming := event_host.last_drawn() + 1;
    IF partition IS NULL
       OR number >= coming / 10000000000
       OR number IS NULL AND NOT EXISTS (
              SELECT FROM event_host.partitions p WHERE p.number = coming / 10000000000) THEN
        RETURN false;
    END IF;
    EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', partition);
    EXECUTE format('SELECT max(position) FROM ONLY %s', partition) INTO last;
    IF EXISTS (SELECT FROM event_host.log_pins p WHERE p.position < last) THEN
        RETURN false;
    END IF;
    IF last IS NOT NULL THEN
        -- No longer than a moment, whatever it holds.
        EXECUTE format('SELECT count(*) FROM (SELECT FROM ONLY %s LIMIT 10000) few', partition)
        INTO events;
        IF events = 10000 THEN
            SELECT greatest(events, c.reltuples::bigint) INTO events
            FROM pg_class c WHERE c.oid = partition;
        END IF;
        INSERT INTO event_host.gone AS g (position, events) VALUES (last, events)
        ON CONFLICT (only_one) DO UPDATE
        SET position = greatest(g.position, excluded.position), events = g.events + excluded.events;
    END IF;
    PERFORM set_config('event_host.emptying',
        (SELECT c.relname FROM pg_class c WHERE c.oid = partition), true);
    EXECUTE format('TRUNCATE TABLE ONLY %s', partition);
    PERFORM set_config('event_host.emptying', '', true);
    RETURN true;
END
$$;

REVOKE ALL ON FUNCTION event_host.empty_partition(bigint) FROM PUBLIC;

-- Drops a partition that is empty and stays so. Whether it did.
CREATE FUNCTION event_host.drop_partition(number bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '50ms'
AS $$
DECLARE
    partition regclass;
    holds_any boolean;
BEGIN
    IF NOT event_host.keeps_the_log() THEN
        RETURN false;
    END IF;
    SELECT p.relation INTO partition FROM event_host.partitions p
    WHERE p.number = drop_partition.number;
    IF partition IS NULL OR number >= (event_host.last_drawn() + 1) / 10000000000 THEN
        RETURN false;
    END IF;
    -- In the order in which everybody takes them.
    LOCK TABLE ONLY event_host.events IN ACCESS EXCLUSIVE MODE;
    EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', partition);
    EXECUTE format('SELECT EXISTS (SELECT FROM ONLY %s)', partition) INTO holds_any;
    IF holds_any THEN
        RETURN false;
    END IF;
    EXECUTE format('DROP TABLE %s', partition);
    RETURN true;
END
$$;

REVOKE ALL ON FUNCTION event_host.drop_partition(bigint) FROM PUBLIC;

-- What was ingested, for a while: by it an event that is sent again is known. The key is a
-- hash of tenant, source and id, the fingerprint one of what the event holds.
--
-- Who ingests makes the row first, before it draws a position, and so waits for whoever
-- ingests the same while the log waits for neither. The position follows in the same
-- transaction: an update that stays on its page.
CREATE TABLE event_host.published (
    fingerprint bigint NOT NULL,
    position    bigint,
    expires_at  timestamptz NOT NULL,
    key         bytea PRIMARY KEY
                CONSTRAINT key_has_16_bytes CHECK (octet_length(key) = 16)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX published_by_time ON event_host.published (expires_at);
