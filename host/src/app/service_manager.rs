//! What the service manager is told (systemd's `sd_notify`): that the host is up, that it
//! reloads, stops, needs longer, and that it is alive. Without a service manager nothing is.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use sd_notify::NotifyState;
use tracing::{debug, warn};

use event_host_http::Health;

/// How much longer it may take, each time that more time is asked for.
const LONGER: Duration = Duration::from_secs(30);

/// How often more time is asked for.
const ASK_EVERY: Duration = Duration::from_secs(10);

/// The host does its work now: after the start, and after a reload.
pub(crate) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The host reads its settings again; [`ready`] follows, whatever comes of it.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        // In one message: the manager takes them together.
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(why) => warn!("the service manager is not told of the reload: {why}"),
    }
}

/// The host stops, and may take so long.
pub(crate) fn stopping(longest: Duration) {
    tell(&[NotifyState::Stopping, extension(longest)]);
}

/// Does something that may take long, such as a migration, and asks for more time as long as
/// it does.
pub(crate) async fn asking_for_time<T>(work: impl Future<Output = T>) -> T {
    tokio::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = tokio::time::sleep(ASK_EVERY) => tell(&[extension(LONGER)]),
        }
    }
}

/// Tells again and again that the host is alive, as long as it is, if the service manager
/// wants to know. On a thread of its own, for a stuck runtime is what it is about.
pub(crate) fn watch(health: Arc<dyn Health>) {
    let Some(within) = sd_notify::watchdog_enabled() else { return };
    let telling = move || {
        loop {
            match health.live() {
                Ok(()) => tell(&[NotifyState::Watchdog]),
                Err(why) => warn!("the service manager is not told that the host is alive: {why}"),
            }
            thread::sleep(within / 2);
        }
    };
    if let Err(why) = thread::Builder::new().name("watchdog".to_owned()).spawn(telling) {
        warn!("the service manager will not be told that the host is alive: {why}");
    }
}

fn extension(time: Duration) -> NotifyState<'static> {
    NotifyState::ExtendTimeoutUsec(u32::try_from(time.as_micros()).unwrap_or(u32::MAX))
}

fn tell(what: &[NotifyState<'_>]) {
    if let Err(why) = sd_notify::notify(what) {
        debug!("the service manager is not reached: {why}");
    }
}
