//! The parameters of a PostgreSQL URL that the host honours.

/// By libpq's names.
pub(super) const KNOWN: [&str; 12] = [
    "host",
    "port",
    "dbname",
    "user",
    "password",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "application_name",
    "options",
    "connect_timeout",
];
