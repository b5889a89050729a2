//! What is under way, on the last line of a terminal.
//!
//! One thread draws it, so that a terminal that takes nothing holds up nobody else. The
//! thread that writes the log takes it away for each line, and puts it back after it.

use std::io::{self, Write};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use indicatif::ProgressBar;

/// How often it turns.
const TICK: Duration = Duration::from_millis(100);

/// How long the end of the process waits until it is gone.
const LAST_TURN: Duration = Duration::from_millis(200);

/// The bar, while it is shown.
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// The way to the thread that draws it.
static DRAWER: Mutex<Option<Sender<Order>>> = Mutex::new(None);

enum Order {
    /// Shows this, or nothing.
    Show(Option<String>),
    /// Shows nothing, and says when that is done by dropping it.
    End(Sender<()>),
}

/// Shows a text, which is one line of the host's own words, or nothing any more. Waits
/// for nobody.
pub(super) fn show(text: Option<String>) {
    let mut drawer = DRAWER.lock().unwrap_or_else(PoisonError::into_inner);
    let orders = match &*drawer {
        Some(orders) => orders,
        // Nothing was shown yet.
        None if text.is_none() => return,
        None => {
            let Some(orders) = start() else { return };
            drawer.insert(orders)
        }
    };
    // Where the thread is gone nothing is shown.
    let _ = orders.send(Order::Show(text));
}

/// Takes it away, before the process ends.
pub(super) fn end() {
    let drawer = DRAWER.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let Some(orders) = drawer else { return };
    let (done, is_done) = channel();
    if orders.send(Order::End(done)).is_ok() {
        // It is dropped once it is done.
        let _ = is_done.recv_timeout(LAST_TURN);
    }
}

fn start() -> Option<Sender<Order>> {
    let (orders, to_draw) = channel();
    let draw = move || {
        let mut bar: Option<ProgressBar> = None;
        loop {
            let order = match &bar {
                None => to_draw.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(_) => to_draw.recv_timeout(TICK),
            };
            let (text, _done) = match order {
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    bar.iter().for_each(ProgressBar::tick);
                    continue;
                }
                Ok(Order::Show(text)) => (text, None),
                Ok(Order::End(done)) => (None, Some(done)),
            };
            match text {
                Some(text) => {
                    let bar = bar.get_or_insert_with(|| {
                        let bar = ProgressBar::new_spinner();
                        set_shown(Some(bar.clone()));
                        bar
                    });
                    bar.set_message(text);
                    bar.tick();
                }
                None => {
                    if let Some(bar) = bar.take() {
                        bar.finish_and_clear();
                        set_shown(None);
                    }
                }
            }
        }
    };
    thread::Builder::new().name("spinner".to_owned()).spawn(draw).ok()?;
    Some(orders)
}

fn set_shown(bar: Option<ProgressBar>) {
    *SHOWN.lock().unwrap_or_else(PoisonError::into_inner) = bar;
}

/// Stderr, whose lines come before what is shown.
pub(super) struct Before<W>(pub(super) W);

impl<W: Write> Write for Before<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match shown {
            Some(bar) => bar.suspend(|| self.0.write(bytes)),
            None => self.0.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
