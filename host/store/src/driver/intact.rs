//! Components as they were deployed, or not at all.

use super::refusals;
use crate::StoreError;
use event_host_core::digest::Digest;

/// Refuses bytes that are not those of the digest: they would run under a name
/// that is not theirs.
///
/// # Errors
/// When they are others.
pub async fn intact(digest: &Digest, bytes: Vec<u8>) -> Result<Vec<u8>, StoreError> {
    let hashing = tokio::task::spawn_blocking(move || (Digest::of(&bytes), bytes));
    let (found, bytes) = hashing
        .await
        .map_err(|why| StoreError::Unavailable(format!("the digest was not computed: {why}")))?;
    if found == *digest { Ok(bytes) } else { Err(refusals::damaged(digest, &found)) }
}
