//! What is wrong with a PostgreSQL URL. It may hold a password anywhere, also in
//! places where none belongs, so no sentence repeats a piece of it.

use super::honoured::KNOWN;

/// Why a text is no URL that the host can connect by.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidPostgresUrl {
    /// Another scheme, or no `//`.
    #[error("is no PostgreSQL URL: write one such as `postgres://user@server/database`")]
    NotPostgres,
    /// A character that ends a part of a URL, where none can end. The usual cause
    /// is a password as it was chosen.
    #[error(
        "holds a blank, a `#`, or an `@` after the server's name: write each character of a password that is no letter or digit as `%` and two hexadecimal digits, such as `%20` for a blank, `%23` for `#`, `%2F` for `/`, `%3F` for `?` and `%40` for `@`"
    )]
    NotEncoded,
    /// A `%` without two digits after it.
    #[error("holds a `%` without two hexadecimal digits after it: write `%25` for the character")]
    Percent,
    /// Bytes that are no text.
    #[error("has percent-encoded bytes that are not UTF-8, or a NUL, which PostgreSQL cannot take")]
    NotText,
    /// More than one server.
    #[error(
        "names several servers, of which the host takes one: name the primary, or a name that leads to it"
    )]
    SeveralServers,
    /// No name of a server.
    #[error(
        "has no valid name of a server: write a host name, an IPv4 address, an IPv6 address in brackets, or leave it out and write `?host=/run/postgresql` for a folder with a socket"
    )]
    Server,
    /// No port.
    #[error("has a port that is no number from 1 to 65535")]
    Port,
    /// A setting that is there twice.
    #[error("says twice what `{0}` is: leave one out")]
    Twice(&'static str),
    /// A parameter without a value; they are counted from 1.
    #[error("has no value in its parameter number {0}: write `name=value`")]
    NoValue(usize),
    /// A parameter that is not known.
    #[error("has a parameter, number {number}, that is not known: {}", instead(*suggestion))]
    Unknown {
        /// Which one, counted from 1.
        number: usize,
        /// The parameter that is most probably meant.
        suggestion: Option<&'static str>,
    },
    /// A parameter of libpq's that the host cannot honour.
    #[error("has the parameter `{name}`, which the host cannot honour: {instead}")]
    Unsupported {
        /// Its name.
        name: &'static str,
        /// What to do.
        instead: &'static str,
    },
    /// Not a number of seconds.
    #[error("has a `connect_timeout` that is no number of seconds from 1 to 3600")]
    ConnectTimeout,
    /// No mode of TLS.
    #[error(
        "takes one of these for `{0}`: `disable`, `prefer`, `require`, `verify-ca` or `verify-full`"
    )]
    Mode(&'static str),
    /// A mode that would end as no TLS at all.
    #[error(
        "asks for `{0}=allow`, TLS only where the server refuses a connection without, which the host cannot do: write `prefer`, which tries TLS first"
    )]
    Allow(&'static str),
    /// An authority that nothing is checked with.
    #[error(
        "names `{0}`, but no mode that checks the server's certificate: add `sslmode=verify-full`"
    )]
    UnusedAuthority(&'static str),
    /// The system's authorities with a mode that does not check names.
    #[error("trusts the system's authorities, which goes with `sslmode=verify-full` alone")]
    SystemAuthorities,
    /// The system's authorities, and one more.
    #[error(
        "trusts the system's authorities by `sslrootcert=system`, but `PGSSLROOTCERT` in the environment adds others: unset it"
    )]
    SystemAndOthers,
    /// A check that any certificate of a public authority would pass.
    #[error(
        "asks to check the server's certificate without its name (`verify-ca`, or `require` with `sslrootcert`). The system's authorities are trusted beside `sslrootcert`, so a certificate of any other server would pass: write `sslmode=verify-full`, or start the host with `SSL_CERT_FILE` in its environment set to the file of `sslrootcert`, and without `SSL_CERT_DIR`, which leaves that authority alone"
    )]
    NameUnchecked,
    /// Half a client's certificate.
    #[error("needs both `sslcert` and `sslkey`, or neither")]
    HalfCertificate,
    /// A file that is not there, or not what it should be.
    #[error("names a file with `{name}` that {problem}")]
    File {
        /// Which one.
        name: &'static str,
        /// The end of the sentence.
        problem: String,
    },
}

fn instead(suggestion: Option<&'static str>) -> String {
    match suggestion {
        Some(known) => format!("did you mean `{known}`?"),
        None => format!("known are `{}`", KNOWN.join("`, `")),
    }
}
