//! A small process that ends a server when the process that started it is gone.
//!
//! It waits at the end of a pipe whose other end only we hold, so it learns of
//! our end however we end, `kill -9` included. A signal at the parent's death
//! (`PR_SET_PDEATHSIG`) would come when the *thread* that started the server
//! ends, exists on Linux alone, and cannot be asked for without unsafe code.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use crate::user::User;

/// Ctrl-C at a terminal reaches every process of the group, and a closed
/// terminal all of them: the guard outlives both. A server that is already down
/// is no fault. A server that has not written its pid file yet, and so escapes
/// `pg_ctl`, ends itself when it misses that file.
const SCRIPT: &str = r#"
trap '' HUP INT TERM
cat >/dev/null
"$1" stop --pgdata "$2/data" --mode immediate --timeout 30 --silent
rm -rf "$2"
"#;

/// The guard of one server's folder. Dropping it ends the server there, if one
/// runs, and removes the folder.
#[derive(Debug)]
pub(crate) struct Guard(Child);

impl Guard {
    pub(crate) fn over(folder: &Path, pg_ctl: &Path, user: Option<User>) -> Result<Self> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SCRIPT, "guard"]).arg(pg_ctl).arg(folder).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        command.process_group(0);
        if let Some(user) = user {
            user.run(&mut command);
        }
        command.spawn().map(Self).context("cannot start /bin/sh")
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // It was not waited for before, so it is there to be waited for.
        let _ = self.0.wait();
    }
}
