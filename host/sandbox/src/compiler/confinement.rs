//! What the process that compiles may ask of the system: memory, threads, and the
//! three pipes that it has. No file, no socket, no other process.
//!
//! A list of what is allowed, not of what is not: a call that a later kernel brings
//! is refused as well. A refused call fails as one that is not permitted, because
//! libraries have an answer to that where they only try.

use std::collections::BTreeMap;

use rustix::process::getpid;
use seccompiler::{
    BpfProgram, Error, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Is,
    SeccompCondition as Argument, SeccompFilter, SeccompRule, apply_filter_all_threads,
};

/// What is allowed whatever its arguments. All of it works on memory, on time, on the
/// own threads, or on files that are open.
const ALLOWED: [libc::c_long; 38] = [
    libc::SYS_brk,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fstat,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_ppoll,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_sigaltstack,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_getcpu,
    libc::SYS_getrusage,
];

/// Applies it to all threads of this process, and to those that they will start.
///
/// # Errors
/// When the kernel or the machine has no such filters.
pub(super) fn apply() -> Result<(), Error> {
    // Its flags lie in memory, where no filter can look: the C library then starts
    // threads in the older way.
    apply_filter_all_threads(&program(
        BTreeMap::from([(libc::SYS_clone3, Vec::new())]),
        SeccompAction::Allow,
        errno(libc::ENOSYS),
    )?)?;
    apply_filter_all_threads(&program(allowed()?, errno(libc::EPERM), SeccompAction::Allow)?)
}

fn program(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    action: SeccompAction,
) -> Result<BpfProgram, Error> {
    let machine = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(rules, otherwise, action, machine)?.try_into()?)
}

fn errno(errno: libc::c_int) -> SeccompAction {
    SeccompAction::Errno(errno.unsigned_abs())
}

fn allowed() -> Result<BTreeMap<i64, Vec<SeccompRule>>, Error> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.into_iter().map(|call| (call, Vec::new())).collect();
    // The other filter answers it.
    rules.insert(libc::SYS_clone3, Vec::new());
    let mut when = |call, argument, length, is, value| -> Result<(), Error> {
        let rule = SeccompRule::new(vec![Argument::new(argument, length, is, value)?])?;
        rules.insert(call, vec![rule]);
        Ok(())
    };
    let flag = |flag: libc::c_int| u64::from(flag.unsigned_abs());
    // Threads, and no other processes.
    let thread = flag(libc::CLONE_THREAD);
    when(libc::SYS_clone, 0, Length::Qword, Is::MaskedEq(thread), thread)?;
    // Memory, and none that can be executed: what it compiles it does not run.
    let executable = flag(libc::PROT_EXEC);
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        when(call, 2, Length::Qword, Is::MaskedEq(executable), 0)?;
    }
    // Ending itself, and no other process.
    let own = u64::from(getpid().as_raw_nonzero().get().unsigned_abs());
    when(libc::SYS_tgkill, 0, Length::Dword, Is::Eq, own)?;
    // Names of threads, and nothing else that belongs to them.
    when(libc::SYS_prctl, 0, Length::Dword, Is::Eq, flag(libc::PR_SET_NAME))?;
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::fs::{self, File};
    use std::io;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::UnixStream;
    use std::path::PathBuf;
    use std::process::Command;
    use std::thread;

    use super::*;

    const CHILD: &str = "EVENT_HOST_TEST_CHILD";
    const TEST: &str =
        "compiler::confinement::tests::it_reaches_memory_and_threads_and_nothing_else";

    fn is_refused<T>(what: &str, result: io::Result<T>) {
        let error = result.err().unwrap_or_else(|| panic!("{what} is allowed"));
        assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{what}: {error}");
    }

    /// In a process of its own, because it is for good.
    #[test]
    fn it_reaches_memory_and_threads_and_nothing_else() {
        let Some(dir) = env::var_os(CHILD).map(PathBuf::from) else {
            let dir = tempfile::tempdir().unwrap();
            let output = Command::new(env::current_exe().unwrap())
                .args(["--exact", TEST, "--nocapture"])
                .env(CHILD, dir.path())
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned()
                + &String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && text.contains("confined as it should"), "{text}");
            return;
        };
        let (old, new) = (dir.join("old"), dir.join("new"));
        fs::write(&old, b"secret").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let parent = rustix::process::getppid();
        apply().unwrap();
        is_refused("reading a file", File::open(&old));
        is_refused("making a file", File::create(&new));
        is_refused("removing a file", fs::remove_file(&old));
        is_refused("listing a folder", fs::read_dir(&dir));
        is_refused("connecting", TcpStream::connect(address));
        is_refused("binding", UdpSocket::bind("127.0.0.1:0"));
        is_refused("a local socket", UnixStream::connect("/run/nothing"));
        is_refused("another program", Command::new("/bin/true").status());
        is_refused(
            "a signal to another",
            rustix::process::kill_process(parent.unwrap(), rustix::process::Signal::CONT)
                .map_err(io::Error::from),
        );
        let limits = rustix::process::Resource::Core;
        is_refused(
            "limits of another",
            rustix::process::prlimit(
                parent,
                limits,
                rustix::process::Rlimit { current: Some(0), maximum: Some(0) },
            )
            .map_err(io::Error::from),
        );
        // Threads of before and after can still work, and take memory.
        let sum = thread::spawn(|| vec![1_u8; 64 << 20].iter().map(|n| u64::from(*n)).sum::<u64>());
        assert_eq!(sum.join().unwrap(), 64 << 20);
        println!("confined as it should");
    }
}
