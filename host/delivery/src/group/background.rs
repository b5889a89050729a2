//! Calls that go on in the background while the leader does other things.

use std::panic::resume_unwind;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::Instrument as _;

/// A call that goes on whatever the leader waits for meanwhile: one of the store has a
/// turn and a connection that others wait for, perhaps the leader itself. Dropping this
/// aborts the call.
pub(super) struct BackgroundCall<T>(JoinHandle<T>);

impl<T: Send + 'static> BackgroundCall<T> {
    /// Begins it, in the span of the caller.
    pub(super) fn spawn(call: impl Future<Output = T> + Send + 'static) -> Self {
        Self(tokio::spawn(call.in_current_span()))
    }

    /// Waits for its end.
    pub(super) async fn answer(&mut self) -> T {
        match (&mut self.0).await {
            Ok(answer) => answer,
            Err(why) => match why.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // The runtime goes down, and the leader with it.
                Err(_) => std::future::pending().await,
            },
        }
    }
}

impl<T> BackgroundCall<T> {
    /// Aborts it, and waits until nothing of it runs.
    pub(super) async fn end(call: Option<Self>) {
        let Some(mut call) = call else { return };
        call.0.abort();
        if let Err(why) = (&mut call.0).await
            && let Ok(panic) = why.try_into_panic()
        {
            resume_unwind(panic);
        }
    }
}

impl<T> Drop for BackgroundCall<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Waits for the end of a call; for ever if none was begun.
pub(super) async fn ended<T: Send + 'static>(call: &mut Option<BackgroundCall<T>>) -> T {
    match call {
        Some(under_way) => {
            let answer = under_way.answer().await;
            *call = None;
            answer
        }
        None => std::future::pending().await,
    }
}

/// Whether a moment is over; without one, it always is.
pub(super) fn is_over(moment: Option<Instant>) -> bool {
    moment.is_none_or(|moment| moment <= Instant::now())
}
