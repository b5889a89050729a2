//! What groups cost that have nothing to do: the real program with a hundred, a thousand
//! and ten thousand of them, one after the other on the same server.
//!
//! All of them run one component. What is shown first should not grow with their
//! number: the statements that the server commits, the processor time of the
//! host, and that of the server's processes that serve it. Then how long it takes until
//! a host that starts leads all of them, until another does after a `kill -9`, and to stop.
//!
//! The component is the Rust no-op guest: `cargo xtask build-guests` first.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "a benchmark")]

mod postgres;

use postgres::{Database, Idle};

const GROUPS: [&[usize]; 2] = [&[50, 500], &[100, 1_000, 10_000]];

fn main() {
    let Some(effort) = postgres::called() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut measured = Vec::new();
        for &groups in effort.pick(GROUPS[0], GROUPS[1]) {
            // Of its own, because a host reads the rows of all groups.
            let database = Database::create().await;
            measured.push(Idle::measure(&database, groups, effort).await);
        }
        println!("groups_postgres: an idle host, over {:?}", measured[0].length);
        Idle::print_heading();
        measured.iter().for_each(Idle::print);
    });
}
