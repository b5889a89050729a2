//! Looks at the cursors all the time: nothing of a group ever goes back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, PgConnection, Row};
use tokio::runtime::Builder;

/// How often it looks.
const LOOK: Duration = Duration::from_millis(20);

/// A group's row: epoch, cursor and number of the last settlement.
type Sight = [i64; 3];

/// A session that looks at the groups until it is stopped.
pub(super) struct Witness {
    stop: Arc<AtomicBool>,
    forget: Arc<AtomicBool>,
    thread: JoinHandle<Seen>,
}

#[derive(Default)]
struct Seen {
    last: BTreeMap<String, Sight>,
    looks: u32,
    /// What went back, from and to.
    back: Vec<(String, Sight, Sight)>,
}

impl Witness {
    pub(super) fn start(url: &str) -> Self {
        let options: PgConnectOptions = url.parse().expect("a URL");
        let options = options.application_name("witness");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let forget = Arc::new(AtomicBool::new(false));
        let forgets = Arc::clone(&forget);
        let thread = thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime starts").block_on(async {
                let mut seen = Seen::default();
                while !stopped.load(Ordering::Relaxed) {
                    // It fails while the server is down, and when that ends it.
                    if let Ok(mut session) = options.connect().await {
                        if forgets.swap(false, Ordering::Relaxed) {
                            seen.last.clear();
                        }
                        while !stopped.load(Ordering::Relaxed)
                            && seen.look(&mut session).await.is_ok()
                        {
                            tokio::time::sleep(LOOK).await;
                        }
                    }
                    tokio::time::sleep(LOOK).await;
                }
                seen
            })
        });
        Self { stop, forget, thread }
    }

    /// Forgets what it has seen when it next connects: another server begins where that
    /// one is. To be called while there is none.
    pub(super) fn forget(&self) {
        self.forget.store(true, Ordering::Relaxed);
    }

    /// Ends it.
    ///
    /// # Panics
    /// When something went back.
    pub(super) fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        let Seen { looks, back, last } = self.thread.join().expect("the witness does not panic");
        println!("{looks} looks at the groups, the last: {last:?}");
        assert!(back.is_empty(), "went back: {back:?}");
        assert!(looks > 10, "the witness saw hardly anything");
    }
}

impl Seen {
    async fn look(&mut self, session: &mut PgConnection) -> sqlx::Result<()> {
        let rows =
            sqlx::query("SELECT name, epoch, position, settled FROM event_host.consumer_groups")
                .fetch_all(session)
                .await?;
        for row in rows {
            let now: Sight = [row.get(1), row.get(2), row.get(3)];
            let name: String = row.get(0);
            let last = self.last.insert(name.clone(), now).unwrap_or_default();
            if last.iter().zip(&now).any(|(last, now)| last > now) {
                self.back.push((name, last, now));
            }
        }
        self.looks += 1;
        Ok(())
    }
}
