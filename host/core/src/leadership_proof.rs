//! The proof that a host leads a group, which runs out.

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// The proof of a leadership. The leadership is lost when its lock can no longer be proved.
///
/// It is a token for those who wait, and a deadline besides: when a process was frozen for
/// longer than the last proof holds and goes on, its leader may be about to commit before
/// any task has cancelled the token.
#[derive(Debug, Clone)]
pub struct LeadershipProof {
    token: CancellationToken,
    proven_until: watch::Receiver<Instant>,
}

impl LeadershipProof {
    /// The proof of a leadership that is lost when the token is cancelled, or at the moment
    /// until which its lock is proved, whichever comes first.
    #[must_use]
    pub fn new(token: CancellationToken, proven_until: watch::Receiver<Instant>) -> Self {
        Self { token, proven_until }
    }

    /// Whether the leadership is lost by now.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.token.is_cancelled() || Instant::now() >= *self.proven_until.borrow()
    }

    /// Waits until the token is cancelled, which happens soon after the deadline.
    pub async fn lost(&self) {
        self.token.cancelled().await;
    }

    /// As [`LeadershipProof::lost`], as a future that borrows nothing.
    pub fn lost_owned(&self) -> WaitForCancellationFutureOwned {
        self.token.clone().cancelled_owned()
    }
}
