//! Commands that do one thing after the other, and can be stopped in between.
//!
//! The first SIGINT (Ctrl-C) or SIGTERM lets what is under way end, so that it is known,
//! and has the command say what it did. A second one ends it at once.

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::telemetry;

/// Whether somebody wants the command to end.
pub(super) struct Interrupt(CancellationToken);

impl Interrupt {
    /// Listens from now on. Until then a signal ends the process, as it always does.
    pub(super) fn listen() -> anyhow::Result<Self> {
        let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
        let asked = CancellationToken::new();
        let asking = asked.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                if asking.is_cancelled() {
                    telemetry::say(
                        "error: interrupted twice: what was under way may have been done",
                    );
                    #[cfg(feature = "build")]
                    crate::build::kill_all();
                    telemetry::flush();
                    std::process::exit(1);
                }
                asking.cancel();
            }
        });
        Ok(Self(asked))
    }

    /// Whether a signal has come.
    pub(super) fn came(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Waits for a signal.
    pub(super) async fn comes(&self) {
        self.0.cancelled().await;
    }
}
