//! A way to the server that counts what is said on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;

/// Passes on what clients and the server say to each other, and counts. When it
/// goes, so does every connection through it.
pub(super) struct Wire {
    url: String,
    counted: Arc<Counted>,
    /// How often the server's sessions have been exchanged for new ones.
    generation: watch::Sender<usize>,
    _serving: JoinSet<()>,
}

#[derive(Default)]
struct Counted {
    round_trips: AtomicUsize,
    statements: AtomicUsize,
}

/// What was said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Said {
    /// How often a client said something and waited for the answer.
    pub(super) round_trips: usize,
    /// How many statements were executed.
    pub(super) statements: usize,
}

impl Wire {
    pub(super) async fn to(url: &str) -> Self {
        let options: PgConnectOptions = url.parse().unwrap();
        let server = format!("{}:{}", options.get_host(), options.get_port());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let here = listener.local_addr().unwrap().to_string();
        let counted = Arc::<Counted>::default();
        let generation = watch::Sender::new(0);
        let mut serving = JoinSet::new();
        serving.spawn({
            let (server, counted) = (server.clone(), Arc::clone(&counted));
            let generation = generation.subscribe();
            async move {
                let mut connections = JoinSet::new();
                while let Ok((client, _)) = listener.accept().await {
                    connections.spawn(connection(
                        client,
                        server.clone(),
                        Arc::clone(&counted),
                        generation.clone(),
                    ));
                }
            }
        });
        // Nothing can be counted in what is encrypted.
        let url = format!("{}?sslmode=disable", url.replacen(&server, &here, 1));
        Self { url, counted, generation, _serving: serving }
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// What has been said since the last time.
    pub(super) fn said(&self) -> Said {
        Said {
            round_trips: self.counted.round_trips.swap(0, Ordering::SeqCst),
            statements: self.counted.statements.swap(0, Ordering::SeqCst),
        }
    }

    /// Gives every client another session of the server's with its next word, as
    /// a pooler does.
    pub(super) fn exchange_sessions(&self) {
        self.generation.send_modify(|generation| *generation += 1);
    }
}

async fn connection(
    client: TcpStream,
    server: String,
    counted: Arc<Counted>,
    generation: watch::Receiver<usize>,
) {
    // Either side may go at any time, and then the other does.
    let _ = try_connection(client, server, counted, generation).await;
}

async fn try_connection(
    client: TcpStream,
    server: String,
    counted: Arc<Counted>,
    mut generation: watch::Receiver<usize>,
) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    let (mut from_client, to_client) = client.into_split();
    let to_client = Arc::new(Mutex::new(to_client));
    // The first message has no type.
    let hello = rest_of_message(&mut from_client).await?;
    let (from_server, mut to_server) = connect(&server, &hello).await?;
    let mut answers = JoinSet::new();
    answers.spawn(pass_on(from_server, Arc::clone(&to_client)));
    generation.mark_unchanged();
    loop {
        let kind = from_client.read_u8().await?;
        let rest = rest_of_message(&mut from_client).await?;
        if generation.has_changed().unwrap_or(false) {
            generation.mark_unchanged();
            // A client that speaks again has had all its answers.
            answers.shutdown().await;
            let (mut from_another, to_another) = connect(&server, &hello).await?;
            until_ready(&mut from_another).await?;
            to_server = to_another;
            answers.spawn(pass_on(from_another, Arc::clone(&to_client)));
        }
        // Query, Sync and Execute of the protocol.
        counted.round_trips.fetch_add(usize::from(matches!(kind, b'Q' | b'S')), Ordering::SeqCst);
        counted.statements.fetch_add(usize::from(matches!(kind, b'Q' | b'E')), Ordering::SeqCst);
        to_server.write_all(&[&[kind], &*rest].concat()).await?;
    }
}

/// The length of a message, which counts itself, and its body.
async fn rest_of_message(from: &mut OwnedReadHalf) -> std::io::Result<Vec<u8>> {
    let length = from.read_u32().await?;
    let mut message = length.to_be_bytes().to_vec();
    message.resize(usize::try_from(length).map_err(std::io::Error::other)?, 0);
    from.read_exact(&mut message[4..]).await?;
    Ok(message)
}

async fn connect(server: &str, hello: &[u8]) -> std::io::Result<(OwnedReadHalf, OwnedWriteHalf)> {
    let server = TcpStream::connect(server).await?;
    server.set_nodelay(true)?;
    let (from_server, mut to_server) = server.into_split();
    to_server.write_all(hello).await?;
    Ok((from_server, to_server))
}

/// Swallows what a server says to a client that it lets in.
async fn until_ready(from_server: &mut OwnedReadHalf) -> std::io::Result<()> {
    loop {
        let kind = from_server.read_u8().await?;
        rest_of_message(from_server).await?;
        if kind == b'Z' {
            return Ok(());
        }
    }
}

async fn pass_on(mut from: OwnedReadHalf, to: Arc<Mutex<OwnedWriteHalf>>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if to.lock().await.write_all(&buffer[..count]).await.is_err() {
            break;
        }
    }
    // The client is to see that the server went.
    let _ = to.lock().await.shutdown().await;
}
