//! Handlers that follow a script and remember what they were called with.

use super::*;

/// What a scripted handler does with one attempt.
#[derive(Debug, Clone)]
pub(super) enum Act {
    Succeed,
    /// Sets the keys that say so and deletes the others, and succeeds.
    Write(Vec<(&'static str, bool)>),
    Fail(FailureKind),
    /// Emits one event with so many bytes, and succeeds.
    Emit(usize),
    /// Succeeds, and says that it took so long.
    Compute(Duration),
    NotRun,
    /// Never ends by itself.
    Hang,
    /// Ends after a while.
    Take(Duration, Box<Act>),
}

pub(super) type Script = dyn Fn(Position, Attempt) -> Act + Send + Sync;

/// Follows a script, and remembers what it was called with. A success counts
/// itself in state and emits one event.
pub(super) struct Scripted {
    pub(super) script: Box<Script>,
    pub(super) state_keys: Option<u64>,
    /// Called when a worker that was used, and the instance that it may have
    /// kept, is dropped.
    pub(super) dropped: Option<Box<dyn Fn() + Send + Sync>>,
    pub(super) takes_batches: bool,
    /// Whether components that replays name are there; else they are waited for.
    pub(super) has_others: watch::Sender<bool>,
    pub(super) calls: watch::Sender<Vec<(i64, u32)>>,
    /// The events of each call that had several.
    pub(super) batch_calls: watch::Sender<Vec<Vec<i64>>>,
}

#[derive(Clone)]
pub(super) struct ScriptedHandler(pub(super) Arc<Scripted>);

impl ScriptedHandler {
    pub(super) fn new(script: impl Fn(Position, Attempt) -> Act + Send + Sync + 'static) -> Self {
        Self::limited(None, script)
    }

    pub(super) fn limited(
        state_keys: Option<u64>,
        script: impl Fn(Position, Attempt) -> Act + Send + Sync + 'static,
    ) -> Self {
        Self::of(state_keys, false, script)
    }

    /// One that takes batches.
    pub(super) fn of_batches(
        script: impl Fn(Position, Attempt) -> Act + Send + Sync + 'static,
    ) -> Self {
        Self::of(None, true, script)
    }

    pub(super) fn of(
        state_keys: Option<u64>,
        takes_batches: bool,
        script: impl Fn(Position, Attempt) -> Act + Send + Sync + 'static,
    ) -> Self {
        let (calls, batch_calls) = (watch::Sender::default(), watch::Sender::default());
        let script = Box::new(script);
        let (dropped, has_others) = (None, watch::Sender::new(true));
        let scripted =
            Scripted { script, state_keys, dropped, takes_batches, has_others, calls, batch_calls };
        Self(Arc::new(scripted))
    }
}

#[async_trait]
impl Handler for ScriptedHandler {
    fn digest(&self) -> &str {
        "sha256:scripted"
    }

    fn state_keys(&self) -> Option<u64> {
        self.0.state_keys
    }

    fn takes_batches(&self) -> bool {
        self.0.takes_batches
    }

    fn has(&self, _: &Digest) -> bool {
        *self.0.has_others.borrow()
    }

    async fn prepare(&self, _: &Digest) -> Result<(), String> {
        self.0.has_others.subscribe().wait_for(|has| *has).await.unwrap();
        Ok(())
    }

    fn worker(&self) -> Box<dyn Worker> {
        Box::new(ScriptedWorker { scripted: Arc::clone(&self.0), used: false })
    }
}

pub(super) struct ScriptedWorker {
    pub(super) scripted: Arc<Scripted>,
    pub(super) used: bool,
}

impl Drop for ScriptedWorker {
    fn drop(&mut self) {
        if let Some(dropped) = self.scripted.dropped.as_ref().filter(|_| self.used) {
            dropped();
        }
    }
}

#[async_trait]
impl Worker for ScriptedWorker {
    async fn attempt(&mut self, call: Call<'_>) -> Report {
        let position = call.event.position;
        self.used = true;
        self.scripted.calls.send_modify(|calls| calls.push((position.0, call.attempt.0)));
        let mut act = (self.scripted.script)(position, call.attempt);
        while let Act::Take(time, then) = act {
            tokio::time::sleep(time).await;
            act = *then;
        }
        if let Act::Write(writes) = act {
            for (key, set) in writes {
                if set {
                    call.state.set(key.into(), vec![1]);
                } else {
                    call.state.delete(key.into());
                }
            }
            return report(Outcome::Success, vec![]);
        }
        if let Act::Emit(bytes) = act {
            let emitted = Event { data: Some(vec![0; bytes]), ..event("large") };
            return report(Outcome::Success, vec![emitted]);
        }
        if let Act::Compute(duration) = act {
            let usage = Usage { duration, ..Usage::default() };
            return Report { usage, ..report(Outcome::Success, vec![]) };
        }
        // Whatever comes of it, it emits and writes: what failed must drop both.
        let count = match call.state.get("count").await {
            Ok(bytes) => bytes.map_or(0, |bytes| bytes[0] as usize * 256 + bytes[1] as usize),
            Err(why) => return report(Outcome::NotRun(why.to_string()), vec![]),
        };
        let next = count + 1;
        call.state.set("count".into(), vec![(next / 256) as u8, (next % 256) as u8]);
        let emits = vec![Event { id: format!("seen-{position}"), ..event("seen") }];
        match act {
            Act::Succeed => report(Outcome::Success, emits),
            Act::Fail(kind) => report(Outcome::Failure(Failure::new(kind, "scripted")), emits),
            Act::NotRun => report(Outcome::NotRun("scripted".into()), emits),
            Act::Hang | Act::Take(..) | Act::Write(_) | Act::Emit(_) | Act::Compute(_) => {
                std::future::pending().await
            }
        }
    }

    /// Handles each event as it would by itself, and counts them all at once. A trap
    /// or a timeout ends the call, and so does what could not be run.
    async fn attempt_all(&mut self, call: BatchCall<'_>) -> BatchReport {
        self.used = true;
        let positions = call.events.iter().map(|event| event.position.0).collect();
        self.scripted.batch_calls.send_modify(|calls| calls.push(positions));
        let (mut outcomes, mut emits, mut last) = (Vec::new(), Vec::new(), None);
        for LogEvent { position, .. } in call.events {
            let mut act = (self.scripted.script)(*position, Attempt::FIRST);
            while let Act::Take(time, then) = act {
                tokio::time::sleep(time).await;
                act = *then;
            }
            match act {
                Act::Fail(kind) => {
                    let failure = Outcome::Failure(Failure::new(kind, "scripted"));
                    if matches!(kind, FailureKind::Trap | FailureKind::Timeout) {
                        last = Some(failure.clone());
                    }
                    outcomes.push(failure);
                }
                Act::NotRun => last = Some(Outcome::NotRun("scripted".into())),
                Act::Hang => std::future::pending().await,
                Act::Succeed | Act::Write(_) | Act::Emit(_) | Act::Compute(_) | Act::Take(..) => {
                    outcomes.push(Outcome::Success);
                }
            }
            emits.push(Event { id: format!("seen-{position}"), ..event("seen") });
        }
        let count = match call.state.get("count").await {
            Ok(bytes) => bytes.map_or(0, |bytes| bytes[0] as usize * 256 + bytes[1] as usize),
            Err(why) => {
                last = Some(Outcome::NotRun(why.to_string()));
                0
            }
        };
        let next = count + call.events.len();
        call.state.set("count".into(), vec![(next / 256) as u8, (next % 256) as u8]);
        if let Some(last) = last {
            outcomes = vec![last; call.events.len()];
        }
        BatchReport { outcomes, emits, usage: Usage::default() }
    }

    fn end_batch(&mut self) {}
}

pub(super) fn report(outcome: Outcome, emits: Vec<Event>) -> Report {
    Report { outcome, emits, usage: Usage::default() }
}

pub(super) fn event(event_type: &str) -> Event {
    Event::new("e", "/test", event_type, "2026-01-01T00:00:00.123456789Z".parse().unwrap())
}
