//! What the program writes: that a stderr which takes nothing costs lines and nothing
//! else, and that a stdout which takes nothing ends no work in its middle.

use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read as _, Write as _, pipe};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;
use tests::{Handler, PATIENCE, Rig, Running, Settings, Store, event, wait_until};

tests::on_both_stores! {
    a_stderr_that_takes_nothing_costs_the_log_and_nothing_else,
    a_stderr_that_nobody_reads_holds_up_neither_delivery_nor_the_stop,
}

/// Each event is counted by one group, and makes a dead letter of the other, with a line
/// in the log.
fn settings() -> Settings {
    Settings::of([
        Handler::new("tally", "tally", &["a"]),
        Handler::new("chaos", "chaos", &["a"]).attempts(1).set("breaker = { events = 0 }"),
    ])
}

fn rejected(n: i64) -> serde_json::Value {
    event("a", n, json!({ "do": "reject" }))
}

/// Publishes so many more events, and expects that both groups do theirs.
fn works(rig: &Rig, before: i64, events: i64) {
    let events: Vec<_> = (before..before + events).map(rejected).collect();
    rig.publish(&events);
    let all = before + events.len() as i64;
    wait_until("each is counted", PATIENCE, || rig.state("tally", "count") == all);
    wait_until("each is a dead letter", PATIENCE, || {
        rig.number("SELECT count(*) FROM dead_letters") == all
    });
}

fn dev_full() -> Stdio {
    File::options().write(true).open("/dev/full").expect("the system has /dev/full").into()
}

/// A pipe whose reader is gone.
fn closed_pipe() -> Stdio {
    let (reader, writer) = pipe().expect("a pipe can be made");
    drop(reader);
    writer.into()
}

/// The same program without the standard streams that are closed so, such as `2>&-`.
fn with_closed(command: &Command, closed: &str) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(format!("exec \"$0\" \"$@\" {closed}"));
    shell.arg(command.get_program()).args(command.get_args());
    shell.current_dir(command.get_current_dir().expect("a command runs in its folder"));
    shell
}

fn a_stderr_that_takes_nothing_costs_the_log_and_nothing_else(store: Store) {
    for format in ["text", "json"] {
        for kind in ["full", "without a reader", "closed"] {
            let rig = Rig::on(store, &settings());
            let arguments = ["run", "--log", "debug", "--log-format", format];
            let mut command = rig.command(arguments);
            let mut host = match kind {
                "full" => Running::start_with_stderr(&mut command, dev_full()),
                "closed" => {
                    Running::start_with_stderr(&mut with_closed(&command, "2>&-"), Stdio::inherit())
                }
                _ => Running::start_with_stderr(&mut command, closed_pipe()),
            };
            works(&rig, 0, 3);
            let epoch = rig.group("tally")["epoch"].clone();
            works(&rig, 3, 200);
            assert_eq!(rig.group("tally")["epoch"], epoch, "{kind}, {format}: led throughout");
            host.sigterm();
            let status = host.wait();
            assert!(status.success(), "{kind}, {format}: {status}");
        }
    }
}

/// Fills a pipe, and keeps it full until the other end is dropped.
fn filled(mut writer: PipeWriter) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        // An error is the end of the test.
        while writer.write_all(&[b'.'; 4096]).is_ok() {}
    })
}

/// Waits until a thread has written to a pipe what there is room for.
fn is_full(reader: &PipeReader) {
    let look = || rustix::io::ioctl_fionread(reader).expect("a pipe says how much is in it");
    let mut before = 0;
    wait_until("the pipe is full", PATIENCE, || {
        let now = look();
        let is_full = now > 0 && now == before;
        before = now;
        is_full
    });
}

fn a_stderr_that_nobody_reads_holds_up_neither_delivery_nor_the_stop(store: Store) {
    let rig = Rig::on(store, &settings());
    let (mut reader, writer) = pipe().expect("a pipe can be made");
    let theirs = writer.try_clone().expect("a pipe can be shared");
    let filling = filled(writer);
    is_full(&reader);
    let mut command = rig.command(["run", "--log", "debug"]);
    let mut host = Running::start_with_stderr(&mut command, theirs.into());
    drop(command);
    works(&rig, 0, 3);
    let epoch = rig.group("tally")["epoch"].clone();
    works(&rig, 3, 1_000);
    assert_eq!(rig.group("tally")["epoch"], epoch, "led throughout");
    host.sigterm();
    let status = host.wait_within(Duration::from_secs(20));
    assert!(status.success(), "{status}");
    // The reader is there all the time.
    assert!(reader.read(&mut [0; 1]).is_ok_and(|read| read == 1));
    drop(reader);
    filling.join().expect("filling does not panic");
}

#[test]
fn what_is_wrong_with_the_arguments_holds_nobody_up_where_stderr_is_not_read() {
    let rig = Rig::new(&settings());
    for arguments in [&["frobnicate"][..], &["status", "--log", "x=y=z"], &["publish"]] {
        let (reader, writer) = pipe().expect("a pipe can be made");
        let theirs = writer.try_clone().expect("a pipe can be shared");
        let filling = filled(writer);
        is_full(&reader);
        let mut command = rig.command(arguments);
        let mut host = Running::start_with_stderr(&mut command, theirs.into());
        drop(command);
        let status = host.wait_within(Duration::from_secs(20));
        assert_eq!(status.code(), Some(2), "{arguments:?}");
        drop(reader);
        filling.join().expect("filling does not panic");
    }
}

/// Runs a command to its end with these two streams, and gives its exit code.
fn code(command: &mut Command, stdout: Stdio, stderr: Stdio) -> Option<i32> {
    let status = command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).status();
    status.expect("the host program starts").code()
}

#[test]
fn a_command_whose_words_nobody_takes_does_as_much_and_exits_alike() {
    let rig = Rig::new(&settings());
    rig.publish(&[rejected(1), rejected(2)]);
    rig.drain();
    for (arguments, exits) in [
        (&["status"][..], 0),
        (&["status", "--log", "trace"], 0),
        (&["status", "--log", "x=y=z"], 2),
        (&["frobnicate"], 2),
        (&["groups", "show", "nobody"], 1),
        (&["run", "elsewhere.toml"], 1),
        (&["dlq", "replay", "77"], 1),
        (&["deploy", "other", "missing.wasm"], 1),
        (&["--help"], 0),
    ] {
        let said = rig.host(arguments);
        assert_eq!(said.code, Some(exits), "{said:?}");
        for stderr in [dev_full, closed_pipe] {
            let code = code(&mut rig.command(arguments), Stdio::null(), stderr());
            assert_eq!(code, Some(exits), "{arguments:?}");
        }
        let closed = &mut with_closed(&rig.command(arguments), ">&- 2>&-");
        assert_eq!(code(closed, Stdio::null(), Stdio::null()), Some(exits), "{arguments:?}");
    }
}

#[test]
fn a_listing_ends_quietly_when_its_reader_does_and_says_it_where_the_volume_is_full() {
    let rig = Rig::new(&settings());
    rig.publish(&(0..300).map(rejected).collect::<Vec<_>>());
    rig.drain();
    for arguments in [
        &["status"][..],
        &["status", "--json"],
        &["groups", "list"],
        &["dlq", "list"],
        &["dlq", "list", "--limit", "300", "--json"],
        &["dlq", "show", "1"],
    ] {
        let (mut said, stderr) = pipe().expect("a pipe can be made");
        assert_eq!(code(&mut rig.command(arguments), closed_pipe(), stderr.into()), Some(0));
        let mut words = String::new();
        said.read_to_string(&mut words).expect("stderr is UTF-8");
        assert_eq!(words, "", "{arguments:?}");

        let (mut said, stderr) = pipe().expect("a pipe can be made");
        assert_eq!(code(&mut rig.command(arguments), dev_full(), stderr.into()), Some(1));
        said.read_to_string(&mut words).expect("stderr is UTF-8");
        assert!(words.starts_with("error: cannot write to stdout: No space left"), "{words}");
        assert_eq!(words.lines().count(), 1, "{words}");
    }
}

#[test]
fn work_is_done_whole_though_nobody_reads_of_it() {
    for (stdout, exits) in [(closed_pipe as fn() -> Stdio, 0), (dev_full, 1)] {
        let rig = Rig::new(&settings());
        rig.publish(&(0..5).map(rejected).collect::<Vec<_>>());
        rig.drain();
        let dead = || rig.number("SELECT count(*) FROM dead_letters");
        let done = |arguments: &[&str]| code(&mut rig.command(arguments), stdout(), Stdio::null());
        assert_eq!(done(&["dlq", "discard", "1", "2"]), Some(exits));
        assert_eq!(dead(), 3);
        assert_eq!(done(&["dlq", "replay", "3", "4"]), Some(exits));
        assert_eq!(dead(), 1);
        // One that fails is a failure, read or not.
        assert_eq!(done(&["dlq", "discard", "77", "5"]), Some(1));
        assert_eq!(dead(), 0);
        assert_eq!(done(&["publish", "--type", "b"]), Some(exits));
        assert_eq!(rig.number("SELECT count(*) FROM events WHERE type = 'b'"), 1);
        assert_eq!(done(&["groups", "pause", "tally"]), Some(exits));
        assert_eq!(rig.group("tally")["state"], "paused");
    }
}
