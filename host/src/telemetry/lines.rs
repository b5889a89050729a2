//! Lines for a writer that may be slow, full or gone.
//!
//! Whoever has a line puts it into a buffer and goes on; one thread writes what is in
//! there. So a reader that stalls holds up that thread and nobody else. A line that
//! cannot be written is lost, and so is one that comes while [`MOST_BYTES`] wait: how
//! many were lost is said as soon as a line can be written again.
//!
//! The buffer is bounded in bytes, because a handler may log 64 KiB at once, and it can
//! be [flushed](Lines::flush) at any time, because a process may end in several places.
//! Each line is one call of `write`, so that two processes that share a pipe do not tear
//! each other's lines.

use std::cell::Cell;
use std::io::{self, ErrorKind, Write};
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use event_host_core::restart::with_restart;

/// Maximum number of bytes that wait to be written.
const MOST_BYTES: usize = 4 << 20;

/// When is tried again what a writer that does not block did not take.
const TRY_AGAIN: Duration = Duration::from_millis(10);

thread_local! {
    /// Whether this is the thread that writes.
    static WRITES: Cell<bool> = const { Cell::new(false) };
}

/// The way to the thread that writes. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Lines(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    more: Condvar,
    written: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    text: Vec<u8>,
    /// The thread writes what it has taken out of the text.
    writing: bool,
    /// Lines that were lost since that was said last.
    lost: u64,
}

impl Lines {
    /// Starts a thread that writes to `out`, for as long as the process lives. It hands
    /// the number of lost lines to `tell` once it can write again.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(super) fn to(
        mut out: impl Write + Send + 'static,
        mut tell: impl FnMut(u64) + Send + 'static,
    ) -> io::Result<Self> {
        let lines = Self(Arc::default());
        let theirs = lines.clone();
        thread::Builder::new().name("log".to_owned()).spawn(move || {
            WRITES.set(true);
            let mut torn = false;
            with_restart("the thread that writes the log", || {
                loop {
                    theirs.write_some(&mut out, &mut torn, &mut tell);
                }
            });
        })?;
        Ok(lines)
    }

    /// Has a line written, or several. Waits for nobody. There is always room for what the
    /// thread that writes says itself: how many lines were lost.
    pub(super) fn push(&self, line: &[u8]) {
        let mut waiting = self.waiting();
        let is_full = waiting.text.len().saturating_add(line.len()) > MOST_BYTES;
        if is_full && !WRITES.get() {
            waiting.lost += count(line);
            return;
        }
        waiting.text.extend_from_slice(line);
        drop(waiting);
        self.0.more.notify_one();
    }

    /// Waits until everything is written or lost, at most so long. Whether it is.
    pub(super) fn flush(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut waiting = self.waiting();
        while waiting.writing || !waiting.text.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let woken = self.0.written.wait_timeout(waiting, left);
            waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Waits for lines, and writes those that are there.
    fn write_some(&self, out: &mut impl Write, torn: &mut bool, tell: &mut impl FnMut(u64)) {
        let mut waiting = self.waiting();
        while waiting.text.is_empty() {
            waiting = self.0.more.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        let text = mem::take(&mut waiting.text);
        waiting.writing = true;
        drop(waiting);
        let (mut lost, mut last_is_written) = (0, false);
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            last_is_written = write(out, line, torn).is_ok();
            lost += u64::from(!last_is_written);
        }
        let mut waiting = self.waiting();
        waiting.writing = false;
        waiting.lost += lost;
        let to_tell = if last_is_written { mem::take(&mut waiting.lost) } else { 0 };
        drop(waiting);
        if to_tell > 0 {
            // Before the flush ends that waits for all of it.
            tell(to_tell);
        }
        self.0.written.notify_all();
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // Every change of it is whole, whoever panicked beside it.
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes a line. `torn`: the one before broke off in its middle, and is ended first.
fn write(out: &mut impl Write, line: &[u8], torn: &mut bool) -> io::Result<()> {
    if *torn {
        write_all(out, b"\n").map_err(|(_, why)| why)?;
        *torn = false;
    }
    write_all(out, line).map_err(|(written, why)| {
        *torn = written > 0;
        why
    })
}

/// Writes all of it, also where the writer does not block. Else says how much it wrote.
fn write_all(out: &mut impl Write, mut bytes: &[u8]) -> Result<(), (usize, io::Error)> {
    let all = bytes.len();
    while !bytes.is_empty() {
        match out.write(bytes) {
            Ok(0) => return Err((all - bytes.len(), ErrorKind::WriteZero.into())),
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(why) if why.kind() == ErrorKind::Interrupted => {}
            Err(why) if why.kind() == ErrorKind::WouldBlock => thread::sleep(TRY_AGAIN),
            Err(why) => return Err((all - bytes.len(), why)),
        }
    }
    Ok(())
}

/// How many lines these bytes are.
fn count(lines: &[u8]) -> u64 {
    lines.split_inclusive(|byte| *byte == b'\n').count() as u64
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// What happens to one call of `write`.
    enum Fate {
        /// Number of bytes that are written.
        Written(usize),
        Fails(ErrorKind),
    }

    /// A writer that does as it is told, call by call, and then writes everything.
    struct Told {
        fates: Receiver<Fate>,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Told {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let many = match self.fates.recv() {
                Ok(Fate::Written(many)) => many.min(bytes.len()),
                Ok(Fate::Fails(kind)) => return Err(kind.into()),
                Err(_) => bytes.len(),
            };
            self.written.lock().unwrap().extend_from_slice(&bytes[..many]);
            Ok(many)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Rig {
        lines: Lines,
        fates: Sender<Fate>,
        written: Arc<Mutex<Vec<u8>>>,
        told: Receiver<u64>,
    }

    fn rig() -> Rig {
        let (fates, to_come) = channel();
        let (tell, told) = channel();
        let written = Arc::default();
        let out = Told { fates: to_come, written: Arc::clone(&written) };
        let lines = Lines::to(out, move |lost| tell.send(lost).unwrap()).unwrap();
        Rig { lines, fates, written, told }
    }

    impl Rig {
        fn written(&self) -> String {
            assert!(self.lines.flush(PATIENCE));
            String::from_utf8(self.written.lock().unwrap().clone()).unwrap()
        }
    }

    #[test]
    fn lines_are_written_in_order_also_where_it_takes_several_calls() {
        let rig = rig();
        for fate in [
            Fate::Written(1),
            Fate::Fails(ErrorKind::Interrupted),
            Fate::Fails(ErrorKind::WouldBlock),
            Fate::Written(usize::MAX),
            Fate::Written(usize::MAX),
        ] {
            rig.fates.send(fate).unwrap();
        }
        rig.lines.push(b"one\n");
        rig.lines.push(b"two\n");
        assert_eq!(rig.written(), "one\ntwo\n");
        assert!(rig.told.try_recv().is_err(), "nothing is lost");
    }

    #[test]
    fn a_line_that_cannot_be_written_is_lost_and_said_once_one_can() {
        let rig = rig();
        for fate in [
            Fate::Fails(ErrorKind::BrokenPipe),
            // The next one breaks off in its middle.
            Fate::Written(2),
            Fate::Fails(ErrorKind::StorageFull),
            // The end of that one, and the third.
            Fate::Written(usize::MAX),
            Fate::Written(usize::MAX),
        ] {
            rig.fates.send(fate).unwrap();
        }
        rig.lines.push(b"one\ntwo\nthree\n");
        assert_eq!(rig.told.recv_timeout(PATIENCE), Ok(2));
        assert_eq!(rig.written(), "tw\nthree\n");
    }

    #[test]
    fn a_writer_that_stalls_holds_up_nobody_and_what_does_not_fit_is_counted() {
        let rig = rig();
        let line = [&[b'x'; 1023][..], b"\n"].concat();
        rig.lines.push(b"stalls\n");
        let all = 3 * MOST_BYTES / line.len();
        for _ in 0..all {
            rig.lines.push(&line);
        }
        assert!(!rig.lines.flush(Duration::from_millis(10)), "nothing is written yet");
        let waiting = rig.lines.waiting().text.len();
        assert!(waiting <= MOST_BYTES, "{waiting} bytes wait");
        let Rig { lines, fates, written, told } = rig;
        // From now on everything is written.
        drop(fates);
        let lost = told.recv_timeout(PATIENCE).unwrap();
        assert!(lines.flush(PATIENCE));
        let kept = count(&written.lock().unwrap()) - 1;
        assert_eq!(kept + lost, all as u64);
        assert!(lost >= all as u64 / 3, "{lost}");
    }

    #[test]
    fn how_many_were_lost_is_said_though_others_have_filled_the_buffer_again() {
        let (fates, to_come) = channel();
        let written = Arc::default();
        let out = Told { fates: to_come, written: Arc::clone(&written) };
        let said = Arc::new(std::sync::OnceLock::<Lines>::new());
        let theirs = Arc::clone(&said);
        let lines = Lines::to(out, move |lost| {
            theirs.wait().push(format!("{lost} lost\n").as_bytes());
        })
        .unwrap();
        said.set(lines.clone()).unwrap();
        lines.push(b"stalls\n");
        let deadline = Instant::now() + PATIENCE;
        while !lines.waiting().writing {
            assert!(Instant::now() < deadline, "nothing is written");
            thread::yield_now();
        }
        let line = [&[b'x'; MOST_BYTES - 1][..], b"\n"].concat();
        for _ in 0..3 {
            lines.push(&line);
        }
        fates.send(Fate::Written(usize::MAX)).unwrap();
        drop(fates);
        assert!(lines.flush(PATIENCE));
        let written: Vec<u8> = written.lock().unwrap().clone();
        let text = String::from_utf8(written).unwrap();
        assert!(text.ends_with("x\n2 lost\n"), "{:?}", text.get(text.len() - 20..));
    }
}
