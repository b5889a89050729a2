//! The `host` program.
fn main() {}
