//! The rights that a role needs, as SQL for whoever owns the schema.

/// What a role is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// It publishes events by `event_host.publish`, and sees nothing.
    Publisher,
    /// It publishes events by INSERT as well, for data that is not JSON.
    Inserter,
    /// It looks at everything, moves cursors, replays dead letters, and deploys.
    Operator,
    /// It takes events in for all tenants, and sees none of them.
    Ingest,
    /// It runs handlers. It does not migrate: that is for the owner.
    Host,
}

/// `publish` runs with the rights of its owner. So nothing of what it uses needs to be
/// granted, the next position least of all: who may call that can draw positions without
/// end and publish nothing.
const PUBLISHER: &[&str] = &[
    "USAGE ON SCHEMA event_host",
    "EXECUTE ON FUNCTION event_host.publish(text, jsonb, text, text, text, timestamptz, text, text, text, jsonb, timestamptz)",
];

const INSERTER: &[&str] = &[
    "USAGE ON SCHEMA event_host",
    "EXECUTE ON FUNCTION event_host.publish(text, jsonb, text, text, text, timestamptz, text, text, text, jsonb, timestamptz)",
    // For a plain INSERT: the next position, which is the log's own to choose, and
    // not the position itself, the tenant, the addressee, its component, nor the
    // time of publishing.
    "EXECUTE ON FUNCTION event_host.next_position()",
    "INSERT (type, data, id, source, subject, time, datacontenttype, dataschema, partitionkey, extensions, deliver_after) ON event_host.events",
];

/// What the host and its commands insert into the log: all but the position.
const APPEND: &str = "INSERT (type, data, id, source, subject, time, datacontenttype, dataschema, partitionkey, extensions, deliver_after, tenant, deliver_to, digest, published_at) ON event_host.events";

/// What was ingested is known by the ledger, whose entries it makes and lets go of. The
/// position alone it may read of the log, because an insert tells it.
const INGEST: &[&str] = &[
    "USAGE ON SCHEMA event_host",
    "EXECUTE ON FUNCTION event_host.next_position()",
    "INSERT (type, data, id, source, subject, time, datacontenttype, dataschema, partitionkey, extensions, deliver_after, tenant) ON event_host.events",
    "SELECT (position) ON event_host.events",
    "SELECT, INSERT, UPDATE, DELETE ON event_host.published",
    // To refuse a schema of another version.
    "SELECT ON event_host.migrations",
];

const OPERATOR: &[&str] = &[
    "USAGE ON SCHEMA event_host",
    "SELECT ON ALL TABLES IN SCHEMA event_host",
    "SELECT ON SEQUENCE event_host.events_position_seq",
    "EXECUTE ON FUNCTION event_host.last_drawn()",
    "EXECUTE ON FUNCTION event_host.look_at_the_end(bigint, boolean)",
    "EXECUTE ON FUNCTION event_host.who_inserts()",
    "EXECUTE ON FUNCTION event_host.next_position()",
    APPEND,
    "UPDATE, DELETE ON event_host.consumer_groups",
    // To update any column is the right to lock a row, which a replay does; this
    // one nobody can change.
    "DELETE, UPDATE (id) ON event_host.dead_letters",
    "DELETE ON event_host.redeliveries",
    "DELETE ON event_host.deferred",
    "DELETE ON event_host.state",
    "INSERT, UPDATE ON event_host.home",
    // The table sees to it that no bytes stand under a digest that is not theirs;
    // to put damaged ones right takes an update.
    "INSERT, UPDATE (size, bytes) ON event_host.components",
    // What was once deployed keeps its number, digest and author.
    "INSERT, UPDATE (state) ON event_host.deployments",
];

const HOST: &[&str] = &[
    "USAGE ON SCHEMA event_host",
    "SELECT ON ALL TABLES IN SCHEMA event_host",
    "SELECT ON SEQUENCE event_host.events_position_seq",
    "EXECUTE ON FUNCTION event_host.last_drawn()",
    "EXECUTE ON FUNCTION event_host.look_at_the_end(bigint, boolean)",
    "EXECUTE ON FUNCTION event_host.who_inserts()",
    "EXECUTE ON FUNCTION event_host.next_position()",
    APPEND,
    "INSERT, UPDATE ON event_host.consumer_groups",
    "INSERT ON event_host.dead_letters",
    "INSERT, UPDATE, DELETE ON event_host.redeliveries",
    "INSERT, UPDATE, DELETE ON event_host.deferred",
    // What was ingested, to know it when it is sent again.
    "INSERT, UPDATE, DELETE ON event_host.published",
    "INSERT, UPDATE, DELETE ON event_host.state",
    "INSERT, UPDATE, DELETE ON event_host.hosts",
    "INSERT, UPDATE, DELETE ON event_host.schedules",
    "INSERT, UPDATE, DELETE ON event_host.host_groups",
    "UPDATE ON event_host.duties",
    "INSERT ON event_host.home",
    // To get round somebody who holds the lock of a host and is not that host.
    "EXECUTE ON FUNCTION event_host.contest_hosts(text, double precision)",
    "INSERT ON event_host.incarnation",
    // To go back to a version that was deployed, and not to deploy any.
    "UPDATE (state) ON event_host.deployments",
    // For retention. The functions let nothing go that a group needs.
    "INSERT, UPDATE, DELETE ON event_host.retention",
    "EXECUTE ON FUNCTION event_host.make_partition(bigint)",
    "EXECUTE ON FUNCTION event_host.begin_partition(bigint)",
    "EXECUTE ON FUNCTION event_host.empty_partition(bigint)",
    "EXECUTE ON FUNCTION event_host.drop_partition(bigint)",
];

/// What the server lets a login do that may publish, whatever is granted to it, and what
/// bounds that. As comments, because the owner of the schema may not change roles.
fn besides(role: &str, purpose: Purpose) -> String {
    let draws = match purpose {
        Purpose::Inserter | Purpose::Ingest => {
            "-- - draw positions and publish nothing (SELECT event_host.next_position()), which
--   leaves gaps in the log;
"
        }
        _ => "",
    };
    format!(
        "-- Besides, who may log in and publish can
-- - publish and keep the transaction open: nothing that is published after that is
--   delivered to any group without `overtake` before it ends. `host status` names it,
--   and SELECT pg_terminate_backend(PID) ends it;
-- - take advisory locks: the groups of a host that is gone are led by another within
--   seconds though it holds the lock that the host had; what else uses such locks in this
--   database is not protected;
-- - NOTIFY event_host, which has hosts look at the log once more, and in transactions
--   that do so commits wait for one another;
{draws}-- - change its own settings: these bound what it does by mistake, and its connections
--   are bounded in any case. Whoever may change roles sets:
-- ALTER ROLE {role} SET idle_in_transaction_session_timeout = '10s';
-- ALTER ROLE {role} SET statement_timeout = '30s';
-- ALTER ROLE {role} CONNECTION LIMIT 20;
-- and on PostgreSQL 17 and later transaction_timeout, which bounds both together.
"
    )
}

/// The statements that give `role` what it needs for a purpose, and nothing
/// else, one a line, and in comments what it can do besides.
#[must_use]
pub fn grants(role: &str, purpose: Purpose) -> String {
    let role = format!("\"{}\"", role.replace('"', "\"\""));
    let (rights, note) = match purpose {
        Purpose::Publisher => (PUBLISHER, None),
        Purpose::Inserter => (INSERTER, None),
        Purpose::Ingest => (INGEST, None),
        Purpose::Operator => {
            (OPERATOR, Some("show the sessions of other roles that hold the log up"))
        }
        Purpose::Host => (HOST, Some("name the sessions of other roles that hold the log up")),
    };
    let mut sql: String =
        rights.iter().map(|right| format!("GRANT {right} TO {role};\n")).collect();
    if matches!(purpose, Purpose::Publisher | Purpose::Inserter | Purpose::Ingest) {
        sql.push_str(&besides(&role, purpose));
    }
    if let Some(use_of_it) = note {
        sql.push_str(&format!("-- To {use_of_it}:\n-- GRANT pg_read_all_stats TO {role};\n"));
    }
    sql
}
