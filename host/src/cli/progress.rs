//! Says what is being compiled: at once on a terminal, with a sign that turns; elsewhere
//! in the log, once it has taken a second, and again each ten seconds.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use tokio_util::task::AbortOnDropHandle;
use tracing::info;

use crate::telemetry;
use event_host_core::foreign;
use event_host_sandbox::{Compiling, Sandbox};

/// What takes no longer is not worth a line in the log.
const FIRST: Duration = Duration::from_secs(1);

/// How often it is said again.
const AGAIN: Duration = Duration::from_secs(10);

/// What a component is called by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Called {
    /// The handler that it is loaded for.
    ByHandler,
    /// Its file.
    ByOrigin,
}

/// Shows what is compiled, by the handlers' names, until the answer is dropped.
pub(super) fn by_handler(sandbox: &Sandbox) -> AbortOnDropHandle<()> {
    follow(sandbox, Called::ByHandler)
}

/// Shows what is compiled until the answer is dropped.
pub(super) fn follow(sandbox: &Sandbox, called: Called) -> AbortOnDropHandle<()> {
    let mut compiling = sandbox.compiling();
    AbortOnDropHandle::new(tokio::spawn(async move {
        let _shown = Shown;
        let mut told = Told::default();
        loop {
            let list = compiling.borrow_and_update().clone();
            let wait = if telemetry::is_watched() {
                telemetry::show(at_once(&list, called));
                None
            } else {
                let (lines, wait) = told.lines(&list, called, Instant::now());
                for line in lines {
                    info!("{line}");
                }
                wait
            };
            let again = async {
                match wait {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = compiling.changed() => if changed.is_err() { return },
                () = again => {}
            }
        }
    }))
}

/// What a terminal shows, which ends with this.
struct Shown;

impl Drop for Shown {
    fn drop(&mut self) {
        telemetry::show(None);
    }
}

/// What is said of compilations, by their numbers: when each is said next.
#[derive(Debug, Default)]
struct Told(HashMap<u64, Instant>);

impl Told {
    /// What is to be said now, and how long there is nothing more to say.
    fn lines(
        &mut self,
        list: &[Compiling],
        called: Called,
        now: Instant,
    ) -> (Vec<String>, Option<Duration>) {
        self.0.retain(|number, _| list.iter().any(|one| one.number == *number));
        let mut lines = Vec::new();
        for one in list {
            let first = one.since + FIRST;
            let next = self.0.entry(one.number).or_insert(first);
            if *next > now {
                continue;
            }
            lines.push(if *next == first {
                format!("compiling {} for the first time", named(one, called))
            } else {
                let so_far = now.saturating_duration_since(one.since);
                format!("still compiling {}, for {so_far:.0?} by now", named(one, called))
            });
            *next = now + AGAIN;
        }
        let wait = self.0.values().min().map(|next| next.saturating_duration_since(now));
        (lines, wait)
    }
}

/// What a terminal is to show.
fn at_once(list: &[Compiling], called: Called) -> Option<String> {
    if list.is_empty() {
        return None;
    }
    let named: Vec<String> = list.iter().map(|one| named(one, called)).collect();
    Some(format!("compiling {} for the first time", named.join(" and ")))
}

fn named(one: &Compiling, called: Called) -> String {
    let handler = one.handler.as_deref().filter(|_| called == Called::ByHandler);
    let name = handler.unwrap_or(&one.origin);
    format!("{} ({})", foreign::one_line(name), ByteSize::b(one.bytes).display().si())
}

#[cfg(test)]
mod tests {
    use super::Called::{ByHandler, ByOrigin};
    use super::*;

    #[test]
    fn what_is_compiled_is_said_after_a_second_and_then_each_ten() {
        let since = Instant::now();
        let one = |number, handler: Option<&str>| Compiling {
            number,
            handler: handler.map(str::to_owned),
            origin: "other\u{1b}.wasm".to_owned(),
            bytes: 18_400_000,
            since,
        };
        let list = [one(1, Some("orders")), one(2, None)];
        let at = |milliseconds| since + Duration::from_millis(milliseconds);
        let mut told = Told::default();
        let (lines, wait) = told.lines(&list, ByHandler, at(400));
        assert_eq!((lines.len(), wait), (0, Some(Duration::from_millis(600))));
        let (lines, wait) = told.lines(&list[..1], ByHandler, at(1_000));
        assert_eq!(lines, ["compiling orders (18.4 MB) for the first time"]);
        assert_eq!(wait, Some(AGAIN));
        let (lines, _) = told.lines(&list, ByHandler, at(5_000));
        assert_eq!(lines, ["compiling other\u{fffd}.wasm (18.4 MB) for the first time"]);
        let (lines, wait) = told.lines(&list, ByHandler, at(11_000));
        assert_eq!(lines, ["still compiling orders (18.4 MB), for 11s by now"]);
        assert_eq!(wait, Some(Duration::from_secs(4)));
        assert_eq!(told.lines(&[], ByHandler, at(12_000)), (vec![], None));
        assert!(told.0.is_empty());
        let shown = at_once(&list, ByHandler).unwrap();
        assert_eq!(
            shown,
            "compiling orders (18.4 MB) and other\u{fffd}.wasm (18.4 MB) for the first time"
        );
        let shown = at_once(&list[..1], ByOrigin).unwrap();
        assert_eq!(shown, "compiling other\u{fffd}.wasm (18.4 MB) for the first time");
        assert_eq!(at_once(&[], ByHandler), None);
    }
}
