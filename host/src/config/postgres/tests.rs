use std::env::VarError;
use std::path::PathBuf;

use proptest::prelude::*;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tempfile::TempDir;

use super::InvalidPostgresUrl as Invalid;
use super::*;

const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n";
const KEY: &str = "-----BEGIN PRIVATE KEY-----\nMA==\n-----END PRIVATE KEY-----\n";

fn read(url: &str) -> Result<PostgresUrl, Invalid> {
    PostgresUrl::read(url, Path::new("/etc/host"), &|_| Err(VarError::NotPresent))
}

fn good(url: &str) -> PostgresUrl {
    read(url).unwrap_or_else(|e| panic!("{url}: {e}"))
}

/// What the client library makes of a URL. It shows a password only in `Debug`.
fn options(url: &PostgresUrl) -> PgConnectOptions {
    url.expose().parse().unwrap()
}

fn password(options: &PgConnectOptions) -> String {
    let debug = format!("{options:?}");
    let (_, rest) = debug.split_once("password: Some(").unwrap();
    let end = rest.find("), database").unwrap();
    serde_json::from_str(&rest[..end]).unwrap()
}

/// A folder with what TLS needs, and the variables of an environment.
struct Files {
    directory: TempDir,
    environment: Vec<(&'static str, String)>,
}

impl Files {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (name, contents) in [
            ("ca.pem", CERTIFICATE),
            ("other.pem", CERTIFICATE),
            ("host.pem", CERTIFICATE),
            ("host.key", KEY),
            ("locked.key", "-----BEGIN ENCRYPTED PRIVATE KEY-----\n"),
            ("empty.pem", ""),
        ] {
            std::fs::write(directory.path().join(name), contents).unwrap();
        }
        Self { directory, environment: Vec::new() }
    }

    fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn read(&self, parameters: &str) -> Result<PostgresUrl, Invalid> {
        let url = format!("postgres://u@h/d?{parameters}");
        let variable = |wanted: &str| {
            let found = self.environment.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| value.clone()).ok_or(VarError::NotPresent)
        };
        PostgresUrl::read(url.trim_end_matches('?'), self.directory.path(), &variable)
    }

    /// What `sslmode` comes to.
    fn mode(&self, parameters: &str) -> Result<String, Invalid> {
        self.read(parameters).map(|url| format!("{:?}", options(&url).get_ssl_mode()))
    }
}

#[test]
fn the_client_library_reads_what_was_written() {
    for (url, host, port, user, database, secret) in [
        ("postgres://u:p@h:6432/d", "h", 6432, "u", "d", "p"),
        ("postgresql://u:p@h:6432/d", "h", 6432, "u", "d", "p"),
        ("POSTGRES://u:p@db-1.example.com/d", "db-1.example.com", 5432, "u", "d", "p"),
        ("postgres://u:p@127.0.0.1/d", "127.0.0.1", 5432, "u", "d", "p"),
        // Without its brackets, which the TLS library cannot take.
        ("postgres://u:p@[::1]:6432/d", "::1", 6432, "u", "d", "p"),
        ("postgres://u:p@[::1]/d", "::1", 5432, "u", "d", "p"),
        ("postgres:///?host=h&port=6432&user=u&password=p&dbname=d", "h", 6432, "u", "d", "p"),
        ("postgres://u%40x:p@h/d%20e", "h", 5432, "u@x", "d e", "p"),
        ("postgres://u:%2F%3F%23%40%3A%25%26%20%2B+=&ü@h/d", "h", 5432, "u", "d", "/?#@:%& ++=&ü"),
        ("postgres://u:p@ss:word@h/d", "h", 5432, "u", "d", "p@ss:word"),
        ("postgres://u@h/d?password=a%26b%3D+%25", "h", 5432, "u", "d", "a&b=+%"),
    ] {
        let options = options(&good(url));
        assert_eq!(options.get_host(), host, "{url}");
        assert_eq!(options.get_port(), port, "{url}");
        assert_eq!(options.get_username(), user, "{url}");
        assert_eq!(options.get_database(), Some(database), "{url}");
        assert_eq!(password(&options), secret, "{url}");
        assert!(matches!(options.get_ssl_mode(), PgSslMode::Prefer), "{url}");
    }
    let url = "postgres://u@h/d?application_name=a%20b&options=-c%20geqo%3Doff%20-c%20x.y%3Dz";
    let url = options(&good(url));
    assert_eq!(url.get_application_name(), Some("a b"));
    assert_eq!(url.get_options(), Some("-c geqo=off -c x.y=z"));
}

#[test]
fn a_socket_is_named_by_its_folder_and_never_has_tls() {
    for url in [
        "postgres://u@/d?host=/run/pg%20sql",
        "postgres:///d?host=%2Frun%2Fpg%20sql&user=u&sslmode=verify-full",
        "postgres://u@%2Frun%2Fpg%20sql/d?sslmode=require",
    ] {
        let options = options(&good(url));
        assert_eq!(options.get_socket(), Some(&PathBuf::from("/run/pg sql")), "{url}");
        assert!(matches!(options.get_ssl_mode(), PgSslMode::Disable), "{url}");
    }
}

#[test]
fn what_is_shown_says_where_it_leads() {
    for (url, shown) in [
        ("postgres://", "postgres://?sslmode=prefer"),
        ("postgresql:///d", "postgres:///d?sslmode=prefer"),
        ("postgres://h", "postgres://h?sslmode=prefer"),
        ("postgres://u:p@h:6432/d", "postgres://u@h:6432/d?sslmode=prefer"),
        ("postgres://u:p@[::1]:6432/d", "postgres://u@[::1]:6432/d?sslmode=prefer"),
        ("postgres://h/a%2Fb%0A?user=u%40x", "postgres://u%40x@h/a/b%0A?sslmode=prefer"),
        ("postgres:///d?host=/run/pg&port=1", "postgres://:1/d?host=/run/pg&sslmode=disable"),
        (
            "postgres://h/d?application_name=a%0Ab&connect_timeout=5&options=-cx.y%3Dz&sslmode=require",
            "postgres://h/d?sslmode=require&application_name=a%0Ab",
        ),
    ] {
        let url = good(url);
        assert_eq!(url.to_string(), shown);
        assert_eq!(format!("{url:?}"), format!("PostgresUrl({shown:?})"));
    }
}

#[test]
fn a_mistake_is_named() {
    let unsupported = |name, instead| Invalid::Unsupported { name, instead };
    let unknown = |number, suggestion| Invalid::Unknown { number, suggestion };
    for (url, expected) in [
        ("", Invalid::NotPostgres),
        ("postgres:", Invalid::NotPostgres),
        ("postgres:h/d", Invalid::NotPostgres),
        ("postgres:/h/d", Invalid::NotPostgres),
        ("host=h dbname=d", Invalid::NotPostgres),
        ("mysql://h/d", Invalid::NotPostgres),
        (" postgres://h/d", Invalid::NotPostgres),
        ("postgres://h/d ", Invalid::NotEncoded),
        ("postgres://h/d\n", Invalid::NotEncoded),
        ("postgres://u:a#b@h/d", Invalid::NotEncoded),
        ("postgres://u:1/b@h/d", Invalid::NotEncoded),
        ("postgres://u:1?b@h/d", Invalid::NotEncoded),
        ("postgres://h/d?application_name=a@b", Invalid::NotEncoded),
        ("postgres://u:50%@h/d", Invalid::Percent),
        ("postgres://u:%4@h/d", Invalid::Percent),
        ("postgres://u:%+4@h/d", Invalid::Percent),
        ("postgres://u:%ü@h/d", Invalid::Percent),
        ("postgres://u:%FF@h/d", Invalid::NotText),
        ("postgres://u:%00@h/d", Invalid::NotText),
        ("postgres://a,b/d", Invalid::SeveralServers),
        ("postgres://a:1,b:2/d", Invalid::SeveralServers),
        ("postgres:///d?host=a,b", Invalid::SeveralServers),
        ("postgres://h/d?port=1,2", Invalid::SeveralServers),
        ("postgres://h%20i/d", Invalid::Server),
        ("postgres://%40abstract/d", Invalid::Server),
        ("postgres://[::1/d", Invalid::Server),
        ("postgres://[::1]5432/d", Invalid::Server),
        ("postgres://[h]/d", Invalid::Server),
        ("postgres://h:0/d", Invalid::Port),
        ("postgres://h:65536/d", Invalid::Port),
        ("postgres://h:+1/d", Invalid::Port),
        ("postgres://h:x/d", Invalid::Port),
        ("postgres://h/d?port=", Invalid::NoValue(1)),
        ("postgres://h/d?sslmode", Invalid::NoValue(1)),
        ("postgres://h/d?user=u&", Invalid::NoValue(2)),
        ("postgres://u@h/d?user=u", Invalid::Twice("user")),
        ("postgres://h/d?sslmode=require&sslmode=disable", Invalid::Twice("sslmode")),
        ("postgres://h/d?user=u&sslmod=require", unknown(2, Some("sslmode"))),
        ("postgres://h/d?ssl-mode=require", unknown(1, Some("sslmode"))),
        ("postgres://h/d?application-name=a", unknown(1, Some("application_name"))),
        ("postgres://h/d?statement-cache-capacity=0", unknown(1, None)),
        ("postgres://h/d?options[geqo]=off", unknown(1, Some("options"))),
        (
            "postgres://h/d?hostaddr=127.0.0.1",
            unsupported("hostaddr", "write the address as the server's name"),
        ),
        ("postgres://h/d?sslcrl=x", unsupported("sslcrl", "leave it out")),
        ("postgres://h/d?ssl=true", unsupported("ssl", "write `sslmode`")),
        ("postgres://h/d?connect_timeout=0", Invalid::ConnectTimeout),
        ("postgres://h/d?connect_timeout=3601", Invalid::ConnectTimeout),
        ("postgres://h/d?connect_timeout=5s", Invalid::ConnectTimeout),
        ("postgres://h/d?sslmode=verify_full", Invalid::Mode("sslmode")),
        ("postgres://h/d?sslmode=Require", Invalid::Mode("sslmode")),
        ("postgres:///d?host=/run&sslmode=on", Invalid::Mode("sslmode")),
        ("postgres://h/d?sslmode=allow", Invalid::Allow("sslmode")),
    ] {
        assert_eq!(read(url), Err(expected), "{url}");
    }
    for name in ["target_session_attrs", "load_balance_hosts", "channel_binding"] {
        let error = read(&format!("postgres://h/d?{name}=any")).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("leave it out"), "{error}");
    }
    assert_eq!(
        read("postgres://h/d?x=y").unwrap_err().to_string(),
        "has a parameter, number 1, that is not known: known are `host`, `port`, `dbname`, `user`, `password`, `sslmode`, `sslrootcert`, `sslcert`, `sslkey`, `application_name`, `options`, `connect_timeout`"
    );
}

#[test]
fn a_connect_timeout_is_carried_beside_the_url() {
    let url = good("postgres://h/d?connect_timeout=5");
    assert_eq!(url.connect_timeout(), Some(Duration::from_secs(5)));
    assert!(!url.expose().contains("timeout"));
    assert_eq!(good("postgres://h/d").connect_timeout(), None);
}

#[test]
fn tls_means_what_libpq_says_it_means() {
    let files = Files::new();
    for (parameters, expected) in [
        ("", Ok("Prefer")),
        ("sslmode=disable", Ok("Disable")),
        ("sslmode=prefer", Ok("Prefer")),
        ("sslmode=require", Ok("Require")),
        ("sslmode=verify-full", Ok("VerifyFull")),
        ("sslmode=verify-full&sslrootcert=ca.pem", Ok("VerifyFull")),
        ("sslmode=disable&sslrootcert=ca.pem", Ok("Disable")),
        ("sslrootcert=system", Ok("VerifyFull")),
        ("sslrootcert=system&sslmode=verify-full", Ok("VerifyFull")),
        ("sslrootcert=system&sslmode=require", Err(Invalid::SystemAuthorities)),
        ("sslrootcert=system&sslmode=verify-ca", Err(Invalid::SystemAuthorities)),
        ("sslrootcert=ca.pem", Err(Invalid::UnusedAuthority("sslrootcert"))),
        ("sslrootcert=ca.pem&sslmode=prefer", Err(Invalid::UnusedAuthority("sslrootcert"))),
        ("sslmode=verify-ca", Err(Invalid::NameUnchecked)),
        ("sslmode=verify-ca&sslrootcert=ca.pem", Err(Invalid::NameUnchecked)),
        // libpq takes it for `verify-ca`.
        ("sslmode=require&sslrootcert=ca.pem", Err(Invalid::NameUnchecked)),
        ("sslmode=require&sslcert=host.pem", Err(Invalid::HalfCertificate)),
        ("sslmode=require&sslkey=host.key", Err(Invalid::HalfCertificate)),
        ("sslmode=require&sslcert=host.pem&sslkey=host.key", Ok("Require")),
    ] {
        assert_eq!(files.mode(parameters), expected.map(str::to_owned), "{parameters}");
    }
}

#[test]
fn a_name_stays_unchecked_only_where_one_authority_alone_is_trusted() {
    let ca = |files: &Files| files.path("ca.pem").to_str().unwrap().to_owned();
    let files = Files::new();
    let path = ca(&files);
    let files = files.with("SSL_CERT_FILE", path);
    for parameters in
        ["sslmode=verify-ca&sslrootcert=ca.pem", "sslmode=require&sslrootcert=./ca.pem"]
    {
        assert_eq!(files.mode(parameters), Ok("VerifyCa".to_owned()), "{parameters}");
    }
    for parameters in [
        "sslmode=verify-ca&sslrootcert=other.pem",
        "sslmode=require&sslrootcert=other.pem",
        "sslmode=verify-ca",
    ] {
        assert_eq!(files.mode(parameters), Err(Invalid::NameUnchecked), "{parameters}");
    }
    let files = files.with("SSL_CERT_DIR", "/etc/ssl/certs");
    let both = files.mode("sslmode=verify-ca&sslrootcert=ca.pem");
    assert_eq!(both, Err(Invalid::NameUnchecked));
}

#[test]
fn the_environment_says_what_the_url_leaves_out() {
    let files = Files::new().with("PGSSLMODE", "verify-full");
    assert_eq!(files.mode(""), Ok("VerifyFull".to_owned()));
    assert_eq!(files.mode("sslmode=require"), Ok("Require".to_owned()));
    let error = Files::new().with("PGSSLMODE", "allow").mode("").unwrap_err();
    assert_eq!(error, Invalid::Allow("PGSSLMODE"));
    let error = Files::new().with("PGSSLMODE", "on").mode("").unwrap_err();
    assert_eq!(error, Invalid::Mode("PGSSLMODE"));

    let files = Files::new();
    let ca = files.path("ca.pem").to_str().unwrap().to_owned();
    let files = files.with("PGSSLROOTCERT", ca);
    assert_eq!(files.mode(""), Err(Invalid::UnusedAuthority("PGSSLROOTCERT")));
    assert_eq!(files.mode("sslmode=require"), Err(Invalid::NameUnchecked));
    assert_eq!(files.mode("sslmode=verify-full"), Ok("VerifyFull".to_owned()));
    assert_eq!(files.mode("sslrootcert=system"), Err(Invalid::SystemAndOthers));
}

#[test]
fn a_file_for_tls_is_there_when_the_settings_are_read() {
    let files = Files::new();
    let url = files.read("sslmode=verify-full&sslrootcert=ca.pem&sslcert=host.pem&sslkey=host.key");
    let parsed = format!("{:?}", options(&url.unwrap()));
    for name in ["ca.pem", "host.pem", "host.key"] {
        let absolute = format!("File({:?})", files.path(name));
        assert!(parsed.contains(&absolute), "{absolute} is not in {parsed}");
    }
    std::fs::create_dir(files.path("folder")).unwrap();
    for (name, parameters, problem) in [
        ("sslrootcert", "sslrootcert=missing.pem", "cannot be read: No such file"),
        ("sslrootcert", "sslrootcert=folder", "is no regular file"),
        ("sslrootcert", "sslrootcert=empty.pem", "holds no certificate in PEM form"),
        ("sslrootcert", "sslrootcert=/dev/zero", "is no regular file"),
        ("sslcert", "sslcert=missing.pem&sslkey=host.key", "cannot be read: No such file"),
        ("sslkey", "sslcert=host.pem&sslkey=host.pem", "holds no key in PEM form"),
        ("sslkey", "sslcert=host.pem&sslkey=locked.key", "or one with a passphrase"),
    ] {
        let error = files.read(&format!("sslmode=verify-full&{parameters}")).unwrap_err();
        let sentence = error.to_string();
        assert!(sentence.contains(problem), "{parameters}: {sentence}");
        assert!(sentence.contains(&format!("`{name}`")), "{parameters}: {sentence}");
    }
}

proptest! {
    #[test]
    fn any_password_comes_through_encoded(secret in "\\PC{1,30}", in_query: bool) {
        let encoded = percent_encoding::utf8_percent_encode(&secret, percent_encoding::NON_ALPHANUMERIC);
        let url = if in_query {
            format!("postgres://u@h/d?password={encoded}")
        } else {
            format!("postgres://u:{encoded}@h/d")
        };
        let url = good(&url);
        let options = options(&url);
        let mut expected = PgConnectOptions::new().password(&secret);
        expected = expected.host("h").username("u").database("d");
        let debug = |options: &PgConnectOptions| {
            let debug = format!("{options:?}");
            debug.split_once("ssl_mode").map(|(before, _)| before.to_owned())
        };
        prop_assert_eq!(debug(&options), debug(&expected));
        prop_assert_eq!(url.to_string(), "postgres://u@h/d?sslmode=prefer");
    }

    /// Taken or refused: a password as it was chosen never shows, nor does any
    /// piece of it that an unencoded character splits off.
    #[test]
    fn a_raw_password_never_shows(
        pieces in proptest::collection::vec("[/?#@:%&=,\\[\\] +]", 0..5),
        in_query: bool,
    ) {
        let secret = format!("hunter2{}hunter2", pieces.join("hunter2"));
        let url = if in_query {
            format!("postgres://u@h/d?password={secret}")
        } else {
            format!("postgres://u:{secret}@h/d")
        };
        let said = match read(&url) {
            Ok(url) => format!("{url:?}{url}"),
            Err(e) => format!("{e:?}{e}"),
        };
        prop_assert!(!said.contains("hunter"), "{url}: {said}");
    }

    #[test]
    fn whatever_is_taken_the_client_library_takes_too(
        rest in "(\\PC|[:/?#@%&=,\\[\\]]|sslmode=|host=|user=|%2F){0,20}",
    ) {
        if let Ok(url) = read(&format!("postgres://{rest}")) {
            prop_assert!(url.expose().parse::<PgConnectOptions>().is_ok(), "{}", url.expose());
        }
    }
}
