//! How the host is, for `/livez`, `/readyz` and the service manager's watchdog: kept up to
//! date by a task, so that an answer costs nothing and waits for nothing.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::parts::Parts;
use event_host_core::pulse::Pulse;
use event_host_core::restart::spawn_with_restart;
use event_host_http::{Health, Part};
use event_host_ingest::Intake;
use event_host_store::Ingest;

/// How often the database is looked at.
const LOOK: Duration = Duration::from_secs(2);

/// An answer of the database counts for so long.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// Silence after which a task is stuck: it only waits, and computes nothing.
const STUCK_TASK: Duration = Duration::from_secs(10);

/// Time in one step after which a thread that runs handlers is stuck: guests are interrupted
/// every few milliseconds. Longer than for a task, because these threads have a lower
/// priority.
const STUCK_THREAD: Duration = Duration::from_secs(30);

/// How the host is.
pub(crate) struct HostHealth {
    /// What the host cannot do without.
    signs: Mutex<Vec<Sign>>,
    is_draining: AtomicBool,
    /// When the database answered last, and why it does not.
    database: Mutex<(Option<Instant>, Option<String>)>,
    intake: Intake,
}

/// What must show that it runs.
struct Sign {
    what: Cow<'static, str>,
    pulse: Arc<Pulse>,
    /// A longer silence is that it is stuck.
    longest: Duration,
}

impl HostHealth {
    /// Begins to look, until the handles are dropped: at the database only while a listener
    /// serves health, for else nobody asks.
    pub(crate) fn start(
        store: Arc<dyn Ingest>,
        intake: Intake,
        served: watch::Receiver<Parts>,
    ) -> (Arc<Self>, [AbortOnDropHandle<()>; 2]) {
        let health = Arc::new(Self {
            signs: Mutex::default(),
            is_draining: AtomicBool::new(false),
            // It was opened just now.
            database: Mutex::new((Some(Instant::now()), None)),
            intake,
        });
        let pulse = health.watch("the runtime", STUCK_TASK);
        let beating = spawn_with_restart("the heartbeat of the host", move || {
            let pulse = Arc::clone(&pulse);
            async move { pulse.beat_during(std::future::pending()).await }
        });
        let looking = {
            let health = Arc::clone(&health);
            spawn_with_restart("the look at the database for /readyz", move || {
                let (health, store) = (Arc::clone(&health), Arc::clone(&store));
                let served = served.clone();
                async move { health.keep_looking(&*store, served).await }
            })
        };
        (health, [beating, looking])
    }

    /// The pulse of a task that the host cannot do without, which is to beat from now on.
    pub(crate) fn watch_task(&self, what: &'static str) -> Arc<Pulse> {
        self.watch(what, STUCK_TASK)
    }

    /// The pulses of the threads that run handlers count from now on.
    pub(crate) fn watch_threads(&self, pulses: &[Arc<Pulse>]) {
        let signs = pulses.iter().enumerate().map(|(number, pulse)| Sign {
            what: format!("thread {number} of those that run handlers").into(),
            pulse: Arc::clone(pulse),
            longest: STUCK_THREAD,
        });
        self.signs().extend(signs);
    }

    fn watch(&self, what: &'static str, longest: Duration) -> Arc<Pulse> {
        let pulse = Arc::<Pulse>::default();
        self.signs().push(Sign { what: what.into(), pulse: Arc::clone(&pulse), longest });
        pulse
    }

    fn signs(&self) -> MutexGuard<'_, Vec<Sign>> {
        // Only added to, so a poisoned one is whole.
        self.signs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The host stops: it is not ready from now on.
    pub(crate) fn drain(&self) {
        self.is_draining.store(true, Ordering::Release);
    }

    async fn keep_looking(&self, store: &dyn Ingest, mut served: watch::Receiver<Parts>) {
        // An error is that the listeners are gone.
        while served.wait_for(|parts| parts.contains(&Part::Health)).await.is_ok() {
            let looked = tokio::time::timeout(ANSWERED_WITHIN, store.log_bytes()).await;
            let why = match looked {
                Ok(Ok(_)) => None,
                Ok(Err(why)) => Some(why.to_string()),
                Err(_) => Some("it does not answer".to_owned()),
            };
            {
                let mut known = self.database.lock().unwrap_or_else(PoisonError::into_inner);
                if why.is_none() {
                    known.0 = Some(Instant::now());
                }
                known.1 = why;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl Health for HostHealth {
    fn live(&self) -> Result<(), String> {
        for Sign { what, pulse, longest } in &*self.signs() {
            let silence = pulse.silence();
            if silence >= *longest {
                return Err(format!("{what} is stuck: it has not run for {} s", silence.as_secs()));
            }
        }
        Ok(())
    }

    fn ready(&self, serves: &BTreeSet<Part>) -> Result<(), String> {
        self.live()?;
        if self.is_draining.load(Ordering::Acquire) {
            return Err("the host stops".to_owned());
        }
        {
            let known = self.database.lock().unwrap_or_else(PoisonError::into_inner);
            let (answered, why) = &*known;
            // The reason may name the server: only those get it who may know.
            if let Some(why) = why {
                return Err(format!("the database: {why}"));
            }
            if answered.is_none_or(|at| at.elapsed() >= LOOK + ANSWERED_WITHIN) {
                return Err("the database did not answer lately".to_owned());
            }
        }
        if serves.contains(&Part::Ingest) && !self.intake.has_room() {
            return Err(
                "the ingest queue is full: requests that are under way take all of `queue`"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio::runtime::{Builder, Runtime};

    use event_host_http::{Address, Inherited, Listener, Routes, Server, Settings};
    use event_host_metrics::Metrics;
    use event_host_store::memory::MemoryStore;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(30);

    /// Longer than a beat, and short enough to wait for.
    const SILENCE: Duration = Duration::from_millis(1_500);

    /// The health of a host that runs on this runtime, and its intake. It ends with the handles.
    async fn health(queue: usize) -> (Arc<HostHealth>, Intake, [AbortOnDropHandle<()>; 2]) {
        let store = Arc::new(MemoryStore::new());
        let settings = event_host_ingest::Settings { queue, ..Default::default() };
        let metrics = Metrics::new(&event_host_metrics::Settings::default());
        let intake = Intake::start(store.clone(), None, settings, metrics.ingest.clone());
        let served = watch::Sender::new(Parts::from([Part::Health]));
        let (health, looking) = HostHealth::start(store, intake.clone(), served.subscribe());
        (health, intake, looking)
    }

    /// What a listener that tells of this health answers.
    async fn ask(server: &Server, path: &str) -> String {
        let (_, address) = server.addresses().next().unwrap();
        let Address::Tcp(address) = address else { panic!("{address}") };
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    async fn wait_for_answer(server: &Server, parts: &[&str]) {
        let begun = Instant::now();
        loop {
            let answer = ask(server, "/livez?verbose").await;
            if parts.iter().all(|part| answer.contains(part)) {
                return;
            }
            assert!(begun.elapsed() < DEADLINE, "{parts:?}: {answer}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Blocks one thread of a runtime, until what is returned is dropped.
    fn block(runtime: &Runtime) -> Sender<()> {
        let (release, released) = channel();
        let (begins, begun) = channel();
        runtime.spawn(async move {
            begins.send(()).unwrap();
            // An error is the release.
            let _ = released.recv();
        });
        begun.recv().unwrap();
        release
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_stuck_supervisor_runtime_or_handler_thread_is_answered_with_503() {
        // The host's own runtime is another than the one that answers: it is to be stuck.
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (health, _intake, _looking) = runtime.spawn(health(1 << 20)).await.unwrap();
        let supervisor = health.watch_task("the supervisor");
        let thread = Arc::<Pulse>::default();
        health.watch_threads(&[Arc::clone(&thread)]);
        for sign in &mut *health.signs() {
            sign.longest = SILENCE;
        }
        let listener = Listener::new("test", Address::Tcp("127.0.0.1:0".parse().unwrap()));
        let settings = Settings { listeners: vec![listener], ..Settings::default() };
        let metrics = Metrics::new(&event_host_metrics::Settings::default());
        let routes = Routes::new(health.clone());
        let server = Server::start(&settings, routes, Inherited::default(), metrics.http.clone());
        let server = server.await.unwrap();
        wait_for_answer(&server, &["HTTP/1.1 200 "]).await;

        let (release, released) = channel::<()>();
        let supervising = {
            let supervisor = Arc::clone(&supervisor);
            runtime
                .spawn(async move { supervisor.beat_during(async move { released.recv() }).await })
        };
        wait_for_answer(&server, &["HTTP/1.1 503 ", "the supervisor is stuck"]).await;
        assert!(health.ready(&Parts::new()).unwrap_err().contains("the supervisor is stuck"));
        drop(release);
        supervising.await.unwrap().unwrap_err();
        wait_for_answer(&server, &["HTTP/1.1 200 "]).await;

        let blocked = [block(&runtime), block(&runtime)];
        wait_for_answer(&server, &["HTTP/1.1 503 ", "the runtime is stuck"]).await;
        drop(blocked);
        wait_for_answer(&server, &["HTTP/1.1 200 "]).await;

        thread.beat();
        wait_for_answer(&server, &["HTTP/1.1 503 ", "thread 0 of those that run handlers"]).await;
        thread.rest();
        wait_for_answer(&server, &["HTTP/1.1 200 "]).await;
        runtime.shutdown_background();
    }

    #[tokio::test]
    async fn a_full_queue_is_not_ready_where_events_come_in_and_ready_elsewhere() {
        let (health, intake, _looking) = health(1 << 20).await;
        let (edge, private) =
            (Parts::from([Part::Ingest, Part::Health]), Parts::from([Part::Health]));
        health.ready(&edge).unwrap();
        let room = intake.room(1 << 20).unwrap();
        let why = health.ready(&edge).unwrap_err();
        assert!(why.contains("the ingest queue is full"), "{why}");
        health.ready(&private).unwrap();
        health.live().unwrap();
        drop(room);
        health.ready(&edge).unwrap();
        health.drain();
        assert_eq!(health.ready(&private).unwrap_err(), "the host stops");
    }
}
