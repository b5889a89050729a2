-- The log, the consumer groups and what hangs on them, and the components that
-- are deployed.
--
-- Times are microseconds since 1970-01-01 00:00 UTC. The names of constraints
-- are what a client is shown when it breaks them.

-- The log. Any client may insert; `type` is all that it must give:
--     INSERT INTO events (type, data) VALUES ('invoice.paid', '{"id": 7}');
-- AUTOINCREMENT, because a position must never be handed out twice, also when the
-- events that had the last ones are gone. Small
-- columns stand first: a reader that filters by them never touches `data`.
CREATE TABLE events (
    position        INTEGER PRIMARY KEY AUTOINCREMENT
                    CONSTRAINT position_is_above_zero CHECK (position > 0),
    tenant          TEXT NOT NULL DEFAULT ''
                    CONSTRAINT tenant_is_text CHECK (typeof(tenant) = 'text')
                    CONSTRAINT tenant_is_a_name_or_empty CHECK (
                        tenant = '' OR tenant GLOB '[A-Za-z0-9]*' AND tenant NOT GLOB '*[^A-Za-z0-9_.-]*' AND instr(tenant, char(0)) = 0
                        AND length(CAST(tenant AS BLOB)) <= 128),
    -- The one group that receives the event; NULL for all that subscribe.
    deliver_to      TEXT
                    CONSTRAINT deliver_to_is_a_group_or_null CHECK (typeof(deliver_to) IN ('text', 'null'))
                    CONSTRAINT deliver_to_is_a_name_or_null CHECK (
                        deliver_to GLOB '[A-Za-z0-9]*' AND deliver_to NOT GLOB '*[^A-Za-z0-9_.-]*' AND instr(deliver_to, char(0)) = 0
                        AND length(CAST(deliver_to AS BLOB)) <= 128),
    -- The component that handles it instead of the group's own, where a replay
    -- names one.
    digest          TEXT
                    CONSTRAINT digest_is_that_of_a_component_or_null CHECK (
                        digest IS NULL
                        -- Both in characters, which end at a NUL, and in bytes.
                        OR typeof(digest) = 'text' AND length(digest) = 71
                        AND length(CAST(digest AS BLOB)) = 71 AND digest GLOB 'sha256:*'
                        AND substr(digest, 8) NOT GLOB '*[^0-9a-f]*' AND deliver_to IS NOT NULL),
    type            TEXT NOT NULL
                    CONSTRAINT type_is_text_and_not_empty CHECK (typeof(type) = 'text' AND type <> '')
                    CONSTRAINT type_has_1024_bytes_at_most CHECK (length(CAST(type AS BLOB)) <= 1024),
    -- CloudEvents' `time`: when it happened.
    time            INTEGER NOT NULL
                    DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000)
                    CONSTRAINT time_is_microseconds_since_1970 CHECK (
                        typeof(time) = 'integer'
                        AND time BETWEEN -377705023201000000 AND 253402207200000000)
                    -- The year 0, before which RFC 3339 has no times.
                    CONSTRAINT time_is_not_before_the_year_0 CHECK (time >= -62167219200000000),
    -- When it was appended.
    published_at    INTEGER NOT NULL
                    DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000)
                    CONSTRAINT published_at_is_microseconds_since_1970 CHECK (
                        typeof(published_at) = 'integer'
                        AND published_at BETWEEN -377705023201000000 AND 253402207200000000),
    -- A random (version 4) UUID.
    id              TEXT NOT NULL
                    DEFAULT (lower(
                        hex(randomblob(4)) || '-' || hex(randomblob(2))
                        || '-4' || substr(hex(randomblob(2)), 2)
                        || '-' || substr('89AB', (random() & 3) + 1, 1) || substr(hex(randomblob(2)), 2)
                        || '-' || hex(randomblob(6))))
                    CONSTRAINT id_is_text_and_not_empty CHECK (typeof(id) = 'text' AND id <> '')
                    CONSTRAINT id_has_1024_bytes_at_most CHECK (length(CAST(id AS BLOB)) <= 1024),
    source          TEXT NOT NULL DEFAULT '/sql'
                    CONSTRAINT source_is_text_and_not_empty CHECK (typeof(source) = 'text' AND source <> '')
                    CONSTRAINT source_has_1024_bytes_at_most CHECK (length(CAST(source AS BLOB)) <= 1024)
                    -- RFC 3986, section 4.1. What stands before a first `:` is a scheme,
                    -- unless one of `/?#` stands before it.
                    CONSTRAINT source_is_a_uri_reference CHECK (
                        source = '/sql'
                        OR source NOT GLOB '*[^!-~]*' AND source NOT GLOB '*["<>\^`{|}]*' AND source NOT GLOB '*#*#*'
                        AND source NOT GLOB '*%[^0-9A-Fa-f]*' AND source NOT GLOB '*%?[^0-9A-Fa-f]*'
                        AND source NOT GLOB '*%' AND source NOT GLOB '*%?'
                        AND instr(source, char(0)) = 0
                        AND CASE WHEN instr(source, ':') > 0
                                AND substr(source, 1, instr(source, ':')) NOT GLOB '*[/?#]*'
                            THEN source GLOB '[A-Za-z]*:*'
                        AND substr(source, 1, instr(source, ':') - 1) NOT GLOB '*[^A-Za-z0-9+.-]*' ELSE 1 END),
    subject         TEXT
                    CONSTRAINT subject_is_text_or_null CHECK (typeof(subject) IN ('text', 'null'))
                    CONSTRAINT subject_is_not_empty CHECK (subject <> '')
                    CONSTRAINT subject_has_8192_bytes_at_most CHECK (length(CAST(subject AS BLOB)) <= 8192),
    datacontenttype TEXT
                    CONSTRAINT datacontenttype_is_text_or_null CHECK (typeof(datacontenttype) IN ('text', 'null'))
                    CONSTRAINT datacontenttype_has_8192_bytes_at_most CHECK (length(CAST(datacontenttype AS BLOB)) <= 8192)
                    -- Its parameters are not looked at.
                    CONSTRAINT datacontenttype_is_a_media_type CHECK (
                        datacontenttype = 'application/json'
                        OR instr(datacontenttype, char(0)) = 0
                        AND datacontenttype GLOB '[!#$%&''*+.^_`|~0-9A-Za-z-]*/[!#$%&''*+.^_`|~0-9A-Za-z-]*'
                        AND rtrim(substr(datacontenttype, 1, instr(datacontenttype || ';', ';') - 1), ' ' || char(9))
                            NOT GLOB '*[^/!#$%&''*+.^_`|~0-9A-Za-z-]*'
                        AND substr(datacontenttype, 1, instr(datacontenttype || ';', ';') - 1) GLOB '?*/?*'
                        AND substr(datacontenttype, 1, instr(datacontenttype || ';', ';') - 1) NOT GLOB '*/*/*'
                        AND datacontenttype NOT GLOB
                            '*[' || char(1) || '-' || char(8, 10) || '-' || char(31, 127) || '-' || char(159) || ']*'),
    dataschema      TEXT
                    CONSTRAINT dataschema_is_text_or_null CHECK (typeof(dataschema) IN ('text', 'null'))
                    CONSTRAINT dataschema_has_8192_bytes_at_most CHECK (length(CAST(dataschema AS BLOB)) <= 8192)
                    CONSTRAINT dataschema_is_an_absolute_uri CHECK (
                        dataschema NOT GLOB '*[^!-~]*' AND dataschema NOT GLOB '*["<>\^`{|}]*' AND dataschema NOT GLOB '*#*#*'
                        AND dataschema NOT GLOB '*%[^0-9A-Fa-f]*' AND dataschema NOT GLOB '*%?[^0-9A-Fa-f]*'
                        AND dataschema NOT GLOB '*%' AND dataschema NOT GLOB '*%?'
                        AND instr(dataschema, char(0)) = 0
                        AND dataschema GLOB '[A-Za-z]*:*'
                        AND substr(dataschema, 1, instr(dataschema, ':') - 1) NOT GLOB '*[^A-Za-z0-9+.-]*'),
    partitionkey    TEXT
                    CONSTRAINT partitionkey_is_text_or_null CHECK (typeof(partitionkey) IN ('text', 'null'))
                    CONSTRAINT partitionkey_is_not_empty CHECK (partitionkey <> '')
                    CONSTRAINT partitionkey_has_1024_bytes_at_most CHECK (length(CAST(partitionkey AS BLOB)) <= 1024),
    -- When it is delivered at the earliest; NULL for at once.
    deliver_after   INTEGER
                    CONSTRAINT deliver_after_is_microseconds_since_1970_or_null CHECK (
                        deliver_after IS NULL
                        OR typeof(deliver_after) = 'integer'
                        AND deliver_after BETWEEN -377705023201000000 AND 253402207200000000)
                    CONSTRAINT deliver_after_is_not_before_the_year_0 CHECK (deliver_after >= -62167219200000000)
                    -- The host allows 366 days; a day more is for clocks that differ.
                    CONSTRAINT deliver_after_is_within_a_year CHECK (
                        deliver_after <= published_at + 31708800000000),
    -- Every other extension attribute: a JSON object of booleans, integers and
    -- strings.
    extensions      TEXT
                    CONSTRAINT extensions_are_a_json_object_or_null CHECK (
                        extensions IS NULL
                        OR (json_valid(extensions) AND json_type(extensions) = 'object'))
                    CONSTRAINT extensions_have_65536_bytes_of_json_at_most CHECK (length(CAST(extensions AS BLOB)) <= 65536),
    -- Bytes, or text that is taken as its bytes.
    data            BLOB
                    CONSTRAINT data_is_blob_text_or_null CHECK (typeof(data) IN ('blob', 'text', 'null')),
    -- Neither control characters nor noncharacters, as CloudEvents has it: those of the
    -- Basic Multilingual Plane, and the last two of each other one.
    CONSTRAINT attributes_hold_no_control_characters CHECK (
        -- Most are printable ASCII, which is seen at once.
        type || id || coalesce(subject, '') || coalesce(partitionkey, '') NOT GLOB '*[^ -~]*'
        AND instr(type || id || coalesce(subject, '') || coalesce(partitionkey, ''), char(0)) = 0
        OR type || id || coalesce(subject, '') || coalesce(partitionkey, '')
            NOT GLOB '*[' || char(1) || '-' || char(31, 127) || '-' || char(159, 64976) || '-'
                || char(65007, 131070, 131071, 196606, 196607, 262142, 262143, 327678, 327679, 393214, 393215,
                    458750, 458751, 524286, 524287, 589822, 589823, 655358, 655359, 720894, 720895,
                    786430, 786431, 851966, 851967, 917502, 917503, 983038, 983039, 1048574, 1048575,
                    1114110, 1114111) || ']*'
        -- GLOB ends at the first, and takes the others for U+FFFD.
        AND instr(type || id || coalesce(subject, '') || coalesce(partitionkey, ''), char(0)) = 0
        AND instr(type || id || coalesce(subject, '') || coalesce(partitionkey, ''), char(65534)) = 0
        AND instr(type || id || coalesce(subject, '') || coalesce(partitionkey, ''), char(65535)) = 0)
);

-- What is to be true of each extension: a constraint cannot look at them one by one.
CREATE TRIGGER extensions_are_those_of_an_event
BEFORE INSERT ON events
WHEN CASE WHEN json_valid(NEW.extensions) THEN json_type(NEW.extensions) = 'object' END
BEGIN
    SELECT RAISE(ABORT, 'extensions_have_names_of_a_to_z_and_digits')
    FROM json_each(NEW.extensions) WHERE key = '' OR key GLOB '*[^a-z0-9]*';
    SELECT RAISE(ABORT, 'extensions_are_booleans_integers_and_strings')
    FROM json_each(NEW.extensions)
    WHERE type IN ('object', 'array')
       -- JSON has one kind of number: `1.0` is an integer.
       OR type = 'real' AND value <> round(value)
       OR type IN ('integer', 'real') AND value NOT BETWEEN -2147483648 AND 2147483647;
    SELECT RAISE(ABORT, 'extensions_are_no_attributes_of_their_own')
    FROM json_each(NEW.extensions)
    WHERE key IN ('specversion', 'id', 'source', 'type', 'subject', 'time',
                  'datacontenttype', 'dataschema', 'partitionkey', 'deliverafter', 'data');
    SELECT RAISE(ABORT, 'extensions_hold_no_control_characters')
    FROM json_each(NEW.extensions)
    WHERE type = 'text'
      AND (value GLOB '*[' || char(1) || '-' || char(31, 127) || '-' || char(159, 64976) || '-'
                || char(65007, 131070, 131071, 196606, 196607, 262142, 262143, 327678, 327679, 393214, 393215,
                    458750, 458751, 524286, 524287, 589822, 589823, 655358, 655359, 720894, 720895,
                    786430, 786431, 851966, 851967, 917502, 917503, 983038, 983039, 1048574, 1048575,
                    1114110, 1114111) || ']*'
           OR instr(value, char(65534)) > 0 OR instr(value, char(65535)) > 0);
    -- As long as they are when they are written out: `1e9` has ten digits, and after each
    -- colon and comma comes a space.
    SELECT RAISE(ABORT, 'extensions_have_65536_bytes_of_json_at_most')
    WHERE (
        SELECT sum(length(CAST(key AS BLOB)) + length('"": , ') + CASE type
                   WHEN 'text' THEN length(CAST(json_quote(value) AS BLOB))
                   WHEN 'integer' THEN length(value)
                   WHEN 'real' THEN length(CAST(value AS INTEGER))
                   ELSE length(type) END)
        FROM json_each(NEW.extensions)) > 65536;
END;

CREATE TRIGGER events_are_never_changed
BEFORE UPDATE ON events
BEGIN
    SELECT RAISE(ABORT, 'events are never changed: insert a new one');
END;

-- The position up to which the retention deletes events, in the transaction in which it
-- does; no row at any other time.
CREATE TABLE letting_go (
    up_to INTEGER NOT NULL
);

-- That keeps nobody out who means to: it is for mistakes.
CREATE TRIGGER events_are_never_deleted_by_hand
BEFORE DELETE ON events
WHEN NOT EXISTS (SELECT 1 FROM letting_go WHERE up_to >= OLD.position)
BEGIN
    SELECT RAISE(ABORT, 'events are never deleted by hand: a retention lets go of those that every group has handled');
END;

-- The hosts that lead a group, as they were when they took over. Whether one is
-- still alive, the file locks tell.
CREATE TABLE hosts (
    id       TEXT PRIMARY KEY NOT NULL,
    hostname TEXT NOT NULL,
    pid      INTEGER NOT NULL
);

CREATE TABLE consumer_groups (
    name              TEXT PRIMARY KEY NOT NULL,
    tenant            TEXT NOT NULL,
    -- The patterns of the subscription: a JSON array of strings.
    subscribe         TEXT NOT NULL
                      CONSTRAINT subscribe_is_a_json_array CHECK (json_valid(subscribe) AND json_type(subscribe) = 'array'),
    -- Into how many parts its events are split. With more than one, each has a row
    -- of its own, which is led like a group and is called by the group's name, a #
    -- and its number from 0 on; and the group's row has what belongs to all of them:
    -- dead letters, state and what an operator says of it, and no cursor in use.
    partitions        INTEGER NOT NULL DEFAULT 1
                      CONSTRAINT there_are_partitions CHECK (partitions >= 1),
    -- In the row of a partition: the group, with which it goes, and its number. One
    -- that is not below `partitions` is of a time when there were more; it is kept, so
    -- that its epochs never come again.
    part_of           TEXT REFERENCES consumer_groups (name) ON DELETE CASCADE,
    partition         INTEGER,
    -- The cursor: everything at or below it is settled.
    position          INTEGER NOT NULL
                      CONSTRAINT position_is_not_negative CHECK (position >= 0),
    -- The fencing token: whoever leads, or moves the cursor, raises it.
    epoch             INTEGER NOT NULL DEFAULT 0,
    -- The number of the last settlement: a leader's own settlement that is late
    -- has one that is no longer the next.
    settled           INTEGER NOT NULL DEFAULT 0,
    leader            TEXT REFERENCES hosts (id),
    leader_since      INTEGER,
    state             TEXT NOT NULL DEFAULT 'running'
                      CONSTRAINT state_is_running_paused_or_tripped CHECK (state IN ('running', 'paused', 'tripped')),
    -- Why it is paused or tripped.
    reason            TEXT,
    -- It keeps nothing in the log: its tenant may not keep as much as it did. Only while it
    -- is paused.
    unpinned          INTEGER NOT NULL DEFAULT 0,
    -- What a host has to say of it though it goes on.
    remark            TEXT,
    -- The event that is retried, if there is one.
    head_position     INTEGER,
    head_attempt      INTEGER,
    head_due_at       INTEGER,
    head_failure_kind TEXT,
    head_failure_text TEXT,
    -- The attempt that was recorded as begun, by a leader that goes on one event at a
    -- time after crashes. In columns of its own: the event need not be the one that is
    -- retried.
    mark_position     INTEGER,
    mark_attempt      INTEGER,
    -- Leaderships in a row that settled nothing and did not end cleanly.
    fruitless         INTEGER NOT NULL DEFAULT 0,
    -- Failed attempts so far, by the kind of the failure: a JSON object.
    failures          TEXT NOT NULL DEFAULT '{}'
                      CONSTRAINT failures_are_an_object CHECK (json_valid(failures) AND json_type(failures) = 'object'),
    -- Events that were handled successfully, and that became dead letters, so far.
    handled_events    INTEGER NOT NULL DEFAULT 0,
    dead_events       INTEGER NOT NULL DEFAULT 0,
    created_at        INTEGER NOT NULL,
    settled_at        INTEGER,
    CONSTRAINT a_head_is_whole CHECK (
        (head_position IS NULL) = (head_attempt IS NULL)
        AND (head_position IS NULL) = (head_due_at IS NULL)),
    CONSTRAINT a_failure_is_whole CHECK ((head_failure_kind IS NULL) = (head_failure_text IS NULL)),
    CONSTRAINT a_mark_is_whole CHECK ((mark_position IS NULL) = (mark_attempt IS NULL)),
    CONSTRAINT a_partition_is_called_by_its_group CHECK (
        (part_of IS NULL) = (instr(name, '#') = 0)
        AND (part_of IS NULL) = (partition IS NULL)
        AND (part_of IS NULL OR name = part_of || '#' || partition))
);

CREATE INDEX partitions_of_a_group ON consumer_groups (part_of) WHERE part_of IS NOT NULL;

-- Events that a group's cursor has passed and that come again. The leader knows
-- them all and reads them once, so there is no index of those that are due.
CREATE TABLE redeliveries (
    group_name   TEXT NOT NULL REFERENCES consumer_groups (name),
    position     INTEGER NOT NULL
                 CONSTRAINT position_is_above_zero CHECK (position > 0),
    -- The attempt that comes next, and when it may begin.
    attempt      INTEGER NOT NULL,
    due_at       INTEGER NOT NULL,
    partitionkey TEXT,
    -- Why the attempt before failed, if there was one.
    failure_kind TEXT,
    failure_text TEXT,
    PRIMARY KEY (group_name, position),
    CONSTRAINT a_failure_is_whole CHECK ((failure_kind IS NULL) = (failure_text IS NULL))
);

-- Events that a group's cursor has passed and that are to be delivered later, whole, so
-- that the log need not keep them. The leader reads those that are due, and knows of the
-- others when the first is. One that failed is a redelivery besides. A row is gone once
-- its event is handled or given up.
CREATE TABLE deferred (
    group_name      TEXT NOT NULL REFERENCES consumer_groups (name),
    position        INTEGER NOT NULL
                    CONSTRAINT position_is_above_zero CHECK (position > 0),
    due_at          INTEGER NOT NULL,
    deliver_to      TEXT,
    digest          TEXT,
    type            TEXT NOT NULL,
    time            INTEGER NOT NULL,
    id              TEXT NOT NULL,
    source          TEXT NOT NULL,
    subject         TEXT,
    datacontenttype TEXT,
    dataschema      TEXT,
    partitionkey    TEXT,
    deliver_after   INTEGER,
    extensions      TEXT,
    data            BLOB,
    PRIMARY KEY (group_name, position)
);

CREATE INDEX deferred_by_time ON deferred (group_name, due_at, position);

-- AUTOINCREMENT, because the number of a dead letter that is gone must not
-- come to mean another one.
CREATE TABLE dead_letters (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    group_name      TEXT NOT NULL REFERENCES consumer_groups (name),
    -- The event, whole, as it stood in the log.
    tenant          TEXT NOT NULL,
    position        INTEGER NOT NULL,
    deliver_to      TEXT,
    type            TEXT NOT NULL,
    time            INTEGER NOT NULL,
    event_id        TEXT NOT NULL,
    source          TEXT NOT NULL,
    subject         TEXT,
    datacontenttype TEXT,
    dataschema      TEXT,
    partitionkey    TEXT,
    deliver_after   INTEGER,
    extensions      TEXT,
    data            BLOB,
    -- Why the group gave up on it.
    attempts        INTEGER NOT NULL,
    failure_kind    TEXT NOT NULL,
    failure_text    TEXT NOT NULL,
    digest          TEXT NOT NULL,
    dead_at         INTEGER NOT NULL
);

CREATE INDEX dead_letters_of_a_group ON dead_letters (group_name, id);

CREATE TABLE state (
    group_name TEXT NOT NULL REFERENCES consumer_groups (name),
    scope      TEXT NOT NULL,
    key        TEXT NOT NULL,
    value      BLOB NOT NULL,
    PRIMARY KEY (group_name, scope, key)
);

-- Components that were deployed, each once, whoever deployed it. The bytes stand
-- last, so that whoever wants the size alone does not read them.
CREATE TABLE components (
    digest   TEXT PRIMARY KEY NOT NULL,
    size     INTEGER NOT NULL
             CONSTRAINT size_is_that_of_the_bytes CHECK (size = length(bytes)),
    added_at INTEGER NOT NULL,
    bytes    BLOB NOT NULL
             CONSTRAINT bytes_are_a_blob CHECK (typeof(bytes) = 'blob')
);

-- The versions of the handlers whose component is deployed.
CREATE TABLE deployments (
    tenant      TEXT NOT NULL,
    handler     TEXT NOT NULL,
    version     INTEGER NOT NULL
                CONSTRAINT version_is_above_zero CHECK (version > 0),
    digest      TEXT NOT NULL REFERENCES components (digest),
    deployed_at INTEGER NOT NULL,
    deployed_by TEXT NOT NULL,
    state       TEXT NOT NULL
                CONSTRAINT state_is_active_previous_or_rolled_back CHECK (state IN ('active', 'previous', 'rolled-back')),
    PRIMARY KEY (tenant, handler, version)
);

-- All that a host reads again and again, without the rest of the table.
CREATE UNIQUE INDEX one_version_is_active ON deployments (tenant, handler) WHERE state = 'active';

-- Schedules, whose ticks are events: up to where each is done. A host moves one from
-- where it knows it, in the transaction that appends the event of a tick, so that each
-- tick is published once. What stands in the events, the hosts' settings say.
CREATE TABLE schedules (
    name      TEXT PRIMARY KEY NOT NULL,
    tenant    TEXT NOT NULL,
    -- As the host has them that registered it last.
    cron      TEXT NOT NULL,
    timezone  TEXT NOT NULL,
    -- Each tick up to here is published or left out.
    done_to   INTEGER NOT NULL,
    -- The last one that was published.
    last_tick INTEGER,
    -- When a host last had it.
    seen_at   INTEGER NOT NULL
);

-- What keeps events in the log: of each group, the positions at or below which
-- nothing is needed, for its cursor and for the first event that comes again and is not
-- kept beside the log. A group that is unpinned needs nothing.
CREATE VIEW log_pins AS
SELECT name AS group_name, position, tenant FROM consumer_groups
-- What is split has no cursor of its own.
WHERE unpinned = 0 AND CASE WHEN part_of IS NULL THEN partitions = 1
           ELSE partitions > 1 AND partition < partitions END
UNION ALL
SELECT name, first - 1, tenant FROM (
    SELECT g.name, g.tenant, (
        SELECT min(r.position) FROM redeliveries r
        WHERE r.group_name = g.name
          AND NOT EXISTS (SELECT 1 FROM deferred d
                          WHERE d.group_name = r.group_name AND d.position = r.position)) AS first
    FROM consumer_groups g WHERE g.unpinned = 0)
WHERE first IS NOT NULL;

-- How long events are kept, as the hosts were last told: for `status`. No row
-- where they are kept for ever.
CREATE TABLE retention (
    only_one                INTEGER PRIMARY KEY DEFAULT 1 CONSTRAINT there_is_only_one CHECK (only_one = 1),
    max_age_in_microseconds INTEGER,
    max_bytes               INTEGER
);

-- What has gone from the beginning of the log: every event at or below this position,
-- and how many. No row while nothing has.
CREATE TABLE gone (
    only_one INTEGER PRIMARY KEY DEFAULT 1 CONSTRAINT there_is_only_one CHECK (only_one = 1),
    position INTEGER NOT NULL,
    events   INTEGER NOT NULL
);

-- What was ingested, for a while: by it an event that is sent again is known. The key is a
-- hash of tenant, source and id, the fingerprint one of what the event holds.
CREATE TABLE published (
    key         BLOB PRIMARY KEY NOT NULL
                CONSTRAINT key_has_16_bytes CHECK (typeof(key) = 'blob' AND length(key) = 16),
    fingerprint INTEGER NOT NULL,
    position    INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX published_by_time ON published (expires_at);
