//! Other users of the machine: what they can do to an embedded database, its locks and
//! those who run it.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::json;
use tests::{Handler, Rig, Settings, event, wait_until};

/// Someone who is not whoever runs the host.
const SOMEBODY: u32 = 65_534;

/// Within which a group is led though others want its lock.
const LED_WITHIN: Duration = Duration::from_secs(10);

/// Two groups, of which somebody else wants the lock of one.
fn settings() -> Settings {
    Settings::of([
        Handler::new("wanted", "tally", &["a"]),
        Handler::new("innocent", "tally", &["a"]),
    ])
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("the file is ours");
}

/// A rig in a folder that every user can go into.
fn rig_for_everybody() -> Rig {
    let above = test_postgres::folder_for_everybody().expect("there is such a folder");
    let rig = Rig::within(&above, &settings());
    set_mode(rig.folder(), 0o755);
    rig
}

/// A process of another user that has tried to hold a lock, and holds it for as long as it
/// lives if it could. Whether it could.
struct Holder(Child, bool);

impl Holder {
    /// None where there is no other user.
    fn of(rig: &Rig, file: &str) -> Option<Self> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "exec 9<\"$0\" && flock -n 9 && echo holds && exec sleep 600"]);
        command.arg(rig.path(file)).current_dir("/").stdout(Stdio::piped());
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        command.uid(SOMEBODY).gid(SOMEBODY);
        let mut child = command.spawn().ok()?;
        let mut line = String::new();
        let stdout = child.stdout.take().expect("stdout is piped");
        BufReader::new(stdout).read_line(&mut line).expect("a pipe can be read");
        Some(Self(child, line == "holds\n"))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn other_users_reach_neither_the_database_nor_its_locks() {
    let rig = rig_for_everybody();
    rig.publish(&[event("a", 1, json!({}))]);
    let said = rig.drain();
    assert!(!said.contains("chmod"), "{said}");
    let locks = rig.path("host.db-locks");
    assert_eq!((mode(&rig.database()), mode(&locks)), (0o600, 0o700));
    let files: Vec<_> = fs::read_dir(&locks).expect("it is a folder").collect();
    assert!(files.len() >= 2, "{files:?}");
    for file in files {
        assert_eq!(mode(&file.expect("it can be read").path()), 0o600);
    }

    let holder = Holder::of(&rig, "host.db-locks/wanted.lock");
    match &holder {
        None => println!("nobody else tried: there is no other user here"),
        Some(holder) => assert!(!holder.1, "another user holds the lock of a group"),
    }
    let host = rig.spawn_run();
    rig.publish(&[event("a", 2, json!({}))]);
    for group in ["wanted", "innocent"] {
        wait_until(group, LED_WITHIN, || rig.state(group, "count") == 2);
    }
    for beside in ["host.db-wal", "host.db-shm"] {
        assert_eq!(mode(&rig.path(beside)), 0o600, "{beside}");
    }
    host.stop();
}

#[test]
fn files_that_let_others_in_are_named_with_what_mends_it() {
    let rig = rig_for_everybody();
    let _ = rig.host(["migrate"]).ok();
    let _ = rig.drain();
    // As an earlier version made them.
    set_mode(&rig.database(), 0o644);
    set_mode(&rig.path("host.db-locks"), 0o755);
    for file in fs::read_dir(rig.path("host.db-locks")).expect("it is a folder") {
        set_mode(&file.expect("it can be read").path(), 0o644);
    }
    let said = rig.drain();
    let mends: Vec<&str> = said.split('`').filter(|words| words.starts_with("chmod ")).collect();
    assert_eq!(mends.len(), 2, "{said}");
    assert_eq!(mode(&rig.database()), 0o644, "what is there is the operator's");
    if let Some(holder) = Holder::of(&rig, "host.db-locks/wanted.lock") {
        assert!(holder.1, "what is said is true");
    }
    for mend in mends {
        let status = Command::new("/bin/sh").args(["-c", mend]).status().expect("there is a shell");
        assert!(status.success(), "{mend}");
    }
    if let Some(holder) = Holder::of(&rig, "host.db-locks/wanted.lock") {
        assert!(!holder.1, "what was said mends it");
    }
    let said = rig.drain();
    assert!(!said.contains("chmod"), "{said}");
}

#[test]
fn who_shares_a_database_with_a_group_of_users_shares_its_locks() {
    let rig = rig_for_everybody();
    let _ = rig.host(["migrate"]).ok();
    set_mode(&rig.database(), 0o660);
    fs::remove_dir_all(rig.path("host.db-locks")).expect("no host runs");
    let said = rig.drain();
    assert!(!said.contains("chmod"), "{said}");
    let locks = rig.path("host.db-locks");
    assert_eq!((mode(&rig.database()), mode(&locks)), (0o660, 0o770));
    for file in fs::read_dir(&locks).expect("it is a folder") {
        assert_eq!(mode(&file.expect("it can be read").path()), 0o660);
    }
}
