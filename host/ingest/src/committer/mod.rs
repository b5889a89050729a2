//! Group commit: while one transaction commits, the next one gathers.
//!
//! The dispatcher begins a commit as soon as one may begin and something waits, with what
//! waits by then. So a lone request waits for nobody, and under load one commit has hundreds.
//! There is no timer, unless `linger` says so.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use event_host_store::{Ingested, Placed, StoreError};

use crate::commits::{Commits, Request};
use crate::queue::Size;
use crate::refusal::{Reason, Refusal};
use crate::shared::Shared;

/// The most of one commit. On SQLite a settlement waits for one such commit at most.
const MOST: Size = Size { events: 1_000, bytes: 8 << 20 };

/// Begins commits, for as long as it is not dropped.
pub(crate) async fn dispatch(shared: Arc<Shared>) {
    let commits = &shared.commits;
    let mut running = JoinSet::new();
    loop {
        while commits.queue().is_empty() {
            commits.changed.notified().await;
        }
        let settings = shared.settings();
        let at_once = settings.connections.min(shared.store.ingests_at_once()).max(1);
        while running.try_join_next().is_some() {}
        while running.len() >= at_once {
            running.join_next().await;
        }
        if !settings.linger.is_zero() && !commits.is_stopping() {
            linger(commits, settings.linger).await;
        }
        let requests = commits.queue().take(MOST);
        let (events, bytes) = commits.waiting();
        shared.metrics.queue_events.set_count(events as u64);
        shared.metrics.queue_bytes.set_count(bytes as u64);
        if !requests.is_empty() {
            let shared = Arc::clone(&shared);
            running.spawn(async move { commit(&shared, requests).await });
        }
    }
}

/// Waits for more, until a commit is full.
async fn linger(commits: &Commits, most: Duration) {
    let filling = async {
        loop {
            let (events, bytes) = commits.waiting();
            if events >= MOST.events || bytes >= MOST.bytes || commits.is_stopping() {
                return;
            }
            commits.changed.notified().await;
        }
    };
    // Either way what waits is taken.
    let _ = tokio::time::timeout(most, filling).await;
}

/// Counts requests as over when it is dropped, whatever ended their commit.
struct UnderWay<'a> {
    commits: &'a Commits,
    requests: usize,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.commits.over(self.requests);
    }
}

/// Commits requests together. Where the database refuses, nothing has happened: they are tried
/// again in halves, so that one which it refuses spoils nobody's, and costs few commits.
async fn commit(shared: &Shared, requests: Vec<Request>) {
    let commits = &shared.commits;
    // Answers first, then the count: whoever waits for the end finds every answer given.
    let _under_way = UnderWay { commits, requests: requests.len() };
    let mut groups = vec![requests];
    let mut is_first = true;
    while let Some(mut group) = groups.pop() {
        if !is_first {
            // Nobody waits for those any more, and nothing of them was published.
            let now = Instant::now();
            group.retain(|request| request.deadline > now);
        }
        is_first = false;
        if group.is_empty() {
            continue;
        }
        let (incoming, answers): (Vec<_>, Vec<_>) = group
            .into_iter()
            .map(|request| {
                let Request { incoming, answer, deadline, _room } = request;
                (incoming, (answer, deadline, _room))
            })
            .unzip();
        let begun = Instant::now();
        let ingested = shared.store.ingest(&incoming).await;
        commits.said(ingested.as_ref().map(|_| ()));
        match ingested {
            Ok(ingested) => {
                shared.metrics.commit.observe(begun.elapsed());
                let events = incoming.iter().map(|request| request.events.len()).sum();
                shared.metrics.commit_events.observe_len(events);
                for ((answer, ..), ingested) in answers.into_iter().zip(ingested) {
                    // Whoever has gone away is not told.
                    let _ = answer.send(told(ingested));
                }
            }
            Err(StoreError::Refused(_) | StoreError::Unstorable(_) | StoreError::Busy(_))
                if incoming.len() > 1 =>
            {
                let mut group: Vec<Request> = incoming
                    .into_iter()
                    .zip(answers)
                    .map(|(incoming, (answer, deadline, _room))| Request {
                        incoming,
                        answer,
                        deadline,
                        _room,
                    })
                    .collect();
                let second = group.split_off(group.len() / 2);
                groups.push(second);
                groups.push(group);
            }
            Err(error) => {
                let refusal = Refusal::of_store(&error);
                for (answer, ..) in answers {
                    let _ = answer.send(Err(refusal.clone()));
                }
            }
        }
    }
}

/// The answer to a request.
fn told(ingested: Ingested) -> Result<Vec<Placed>, Refusal> {
    match ingested {
        Ingested::Committed(placed) => Ok(placed),
        Ingested::Reused { event, position } => {
            let other = match position {
                Some(position) => format!("another event, at position {position}"),
                None => "another event of the request".to_owned(),
            };
            let refusal = Refusal::new(
                Reason::IdReused,
                format!(
                    "{other} has the same `source` and `id`, and another type, subject, content type or data; nothing of the request was published: give each event an id of its own"
                ),
            );
            Err(Refusal { position, ..refusal.event(event).attribute("id") })
        }
    }
}

#[cfg(test)]
mod tests;
