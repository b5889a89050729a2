//! What a server of a test's own promises.

#![allow(clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};
use test_postgres::{Server, Stop};

fn started(settings: &[(&str, &str)]) -> Server {
    Server::start(settings).unwrap_or_else(|error| panic!("{error:#}"))
}

async fn connected(server: &Server) -> PgConnection {
    PgConnection::connect(&server.url("postgres")).await.expect("the server answers")
}

async fn setting(server: &Server, name: &str) -> String {
    let mut connection = connected(server).await;
    let value = sqlx::query_scalar("SELECT current_setting($1)").bind(name);
    value.fetch_one(&mut connection).await.expect("the setting exists")
}

fn wait_until(what: &str, mut look: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !look() {
        assert!(begun.elapsed() < Duration::from_secs(30), "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[tokio::test]
async fn a_server_answers_with_the_version_it_says() {
    let server = started(&[]);
    let version = setting(&server, "server_version").await;
    let said = server.binaries().version().expect("the programs know their version");
    assert_eq!(version.split(' ').next(), Some(said.as_str()));
    assert_eq!(setting(&server, "max_connections").await, "200");
}

#[tokio::test]
async fn settings_of_ones_own_win_and_are_quoted() {
    let server = started(&[("max_connections", "17"), ("cluster_name", "it's mine")]);
    assert_eq!(setting(&server, "max_connections").await, "17");
    assert_eq!(setting(&server, "cluster_name").await, "it's mine");
}

#[tokio::test]
async fn what_was_committed_outlives_a_restart_and_a_crash() {
    let mut server = started(&[]);
    let (port, first) = (server.port(), server.pid());
    sqlx::raw_sql("CREATE TABLE kept (how text)")
        .execute(&mut connected(&server).await)
        .await
        .unwrap();
    for how in [Stop::Fast, Stop::Immediate] {
        let mut connection = connected(&server).await;
        let insert = sqlx::query("INSERT INTO kept VALUES ($1)").bind(format!("{how:?}"));
        insert.execute(&mut connection).await.unwrap();
        server.restart(how).unwrap();
        assert!(connection.ping().await.is_err(), "a session outlived {how:?}");
    }
    assert_eq!(server.port(), port);
    assert_ne!(server.pid(), first);
    let kept = sqlx::query_scalar("SELECT string_agg(how, ' ' ORDER BY how) FROM kept");
    let kept: String = kept.fetch_one(&mut connected(&server).await).await.unwrap();
    assert_eq!(kept, "Fast Immediate");
    let log = server.log().unwrap();
    assert!(log.contains("not properly shut down"), "no crash in the log: {log}");
}

#[tokio::test]
async fn a_stopped_server_is_gone_until_it_is_resumed() {
    let mut server = started(&[]);
    server.stop(Stop::Fast).unwrap();
    server.stop(Stop::Fast).unwrap();
    assert_eq!(server.pid(), None);
    assert!(TcpStream::connect(("127.0.0.1", server.port())).is_err());
    server.resume().unwrap();
    let pid = server.pid();
    server.resume().unwrap();
    assert_eq!(server.pid(), pid);
    assert_eq!(setting(&server, "port").await, server.port().to_string());
}

#[tokio::test]
async fn two_servers_live_beside_each_other() {
    let (one, other) = (started(&[]), started(&[]));
    assert_ne!(one.port(), other.port());
    for server in [&one, &other] {
        let data = server.data().display().to_string();
        assert_eq!(setting(server, "data_directory").await, data);
    }
}

#[tokio::test]
async fn a_file_that_was_put_is_the_servers_own() {
    let server = started(&[]);
    server.put("pg_hba.conf", "host all nobody_else 127.0.0.1/32 reject\n").unwrap();
    let mut connection = connected(&server).await;
    let read = sqlx::query_scalar("SELECT pg_read_file('pg_hba.conf')");
    let text: String = read.fetch_one(&mut connection).await.unwrap();
    assert_eq!(text, "host all nobody_else 127.0.0.1/32 reject\n");
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let error = Server::start(&[("max_connections", "many")]).expect_err("no such number");
    let text = format!("{error:#}");
    assert!(text.contains("invalid value for parameter \"max_connections\""), "{text}");
}

#[test]
fn nothing_is_left_of_a_server_that_was_dropped() {
    let server = started(&[]);
    let (port, folder) = (server.port(), server.socket_folder().to_owned());
    assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());
    drop(server);
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    assert!(!folder.exists(), "{} is still there", folder.display());
}

#[tokio::test]
async fn a_server_does_not_outlive_a_process_that_was_killed() {
    let mut owner = Command::new(env!("CARGO_BIN_EXE_test-postgres"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut url = String::new();
    BufReader::new(owner.stdout.take().expect("stdout is piped")).read_line(&mut url).unwrap();
    let mut connection = PgConnection::connect(url.trim()).await.expect("the server answers");
    let data = sqlx::query_scalar("SELECT current_setting('data_directory')");
    let data: PathBuf = data.fetch_one(&mut connection).await.map(String::into).unwrap();
    assert!(data.exists());

    owner.kill().expect("the program can be killed");
    owner.wait().expect("the program can be waited for");
    wait_until("the server's folder is gone", || !data.exists());
    wait_until("the server is gone", || {
        let address = url.trim().trim_start_matches("postgres://postgres@");
        TcpStream::connect(address.trim_end_matches("/postgres")).is_err()
    });
    assert!(connection.ping().await.is_err());
}
