//! Whose the schema is.
//!
//! Whoever owns a schema, or may create in it, decides what a name in it means: a function
//! of another role runs with the rights of whoever calls it, and one that fits the words
//! of a call better is called instead of ours. So the schema is looked at before anything
//! in it is read, and what belongs to others is refused by name. All that is asked here is
//! in the server's own catalogs.

use sqlx::{PgConnection, Row};

use super::error::PostgresError;
use event_host_core::foreign::one_line;
use event_host_store::StoreError;

/// Whose schema is good enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// That of this role, or of one that it is a member of: for who migrates it.
    Ours,
    /// Anybody's, as long as nobody else has anything in it: for who uses what an owner
    /// has granted.
    Anybodys,
}

/// What the schema is like that is there. None where there is none.
const LOOK: &str = "
WITH RECURSIVE ours (role) AS (
    SELECT r.oid FROM pg_roles r WHERE r.rolname = current_user
    UNION
    -- Before PostgreSQL 16 every role could make anybody a member of itself: that says
    -- nothing of who is trusted. To be a superuser, who is no member, says nothing either.
    SELECT m.roleid FROM pg_auth_members m JOIN ours ON m.member = ours.role
    WHERE m.grantor <> m.roleid
),
schema AS (SELECT n.oid, n.nspowner, n.nspacl FROM pg_namespace n WHERE n.nspname = 'event_host'),
objects (kind, name, owner) AS (
    SELECT CASE c.relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view'
                          WHEN 'S' THEN 'sequence' WHEN 'f' THEN 'foreign table'
                          WHEN 'c' THEN 'type' ELSE 'table' END,
           quote_ident(c.relname), c.relowner
    FROM pg_class c JOIN schema s ON c.relnamespace = s.oid
    WHERE c.relkind NOT IN ('i', 'I', 't')
    UNION ALL
    SELECT 'function', format('%I(%s)', p.proname, pg_get_function_identity_arguments(p.oid)), p.proowner
    FROM pg_proc p JOIN schema s ON p.pronamespace = s.oid
    UNION ALL
    -- Not those that a table or another type brings along.
    SELECT 'type', quote_ident(t.typname), t.typowner
    FROM pg_type t JOIN schema s ON t.typnamespace = s.oid
    WHERE t.typrelid = 0 AND t.typcategory <> 'A'
    UNION ALL
    SELECT 'operator', o.oprname::text, o.oprowner
    FROM pg_operator o JOIN schema s ON o.oprnamespace = s.oid
)
SELECT current_user::text,
       pg_get_userbyid(s.nspowner)::text,
       s.nspowner IN (SELECT role FROM ours),
       ARRAY(
           SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC'
                                          ELSE quote_ident(pg_get_userbyid(a.grantee)) END
           FROM aclexplode(s.nspacl) a
           WHERE a.privilege_type = 'CREATE' AND a.grantee <> s.nspowner
             AND a.grantee NOT IN (SELECT role FROM ours)
           ORDER BY 1),
       ARRAY(
           SELECT format('%s event_host.%s of role %I', o.kind, o.name, pg_get_userbyid(o.owner))
           FROM objects o
           WHERE o.owner <> s.nspowner AND o.owner NOT IN (SELECT role FROM ours)
           ORDER BY 1)
FROM schema s";

/// Refuses a schema that is somebody else's, one that others may create in, and one that
/// has something of others in it. Where there is none, there is nothing to refuse.
pub(super) async fn check(
    connection: &mut PgConnection,
    server: &str,
    owner: Owner,
) -> Result<(), PostgresError> {
    /// More are only counted.
    const NAMED: usize = 5;
    let Some(row) = sqlx::query(LOOK).fetch_optional(connection).await? else { return Ok(()) };
    let me: String = row.try_get_unchecked(0)?;
    let theirs: String = row.try_get_unchecked(1)?;
    let (me, theirs) = (one_line(&me), one_line(&theirs));
    let refused = |why: String| Err(StoreError::Unusable(why).into());
    if owner == Owner::Ours && !row.try_get_unchecked::<bool, _>(2)? {
        return refused(format!(
            "the schema `event_host` of {server} belongs to role `{theirs}`, and role `{me}` is no member of it: whoever owns a schema decides what runs in it. Connect as `{theirs}`, or have `{me}` own it (ALTER SCHEMA event_host OWNER TO …, and all that is in it); where `{theirs}` is who runs `host migrate`, set `migrate = false`"
        ));
    }
    let creators: Vec<String> = row.try_get_unchecked(3)?;
    if !creators.is_empty() {
        let creators = creators.join(", ");
        let creators = one_line(&creators);
        return refused(format!(
            "others than its owner may create in the schema `event_host` of {server}, and so decide what runs there: REVOKE CREATE ON SCHEMA event_host FROM {creators}"
        ));
    }
    let foreign: Vec<String> = row.try_get_unchecked(4)?;
    if !foreign.is_empty() {
        let named = foreign.iter().take(NAMED).map(|object| one_line(object));
        let named = named.collect::<Vec<_>>().join(", ");
        let more = match foreign.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        return refused(format!(
            "the schema `event_host` of {server} belongs to role `{theirs}` and has something of others in it: {named}{more}. Drop that, or have `{theirs}` own it (ALTER … OWNER TO …)"
        ));
    }
    Ok(())
}
