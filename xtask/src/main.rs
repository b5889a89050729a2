//! What a developer types.
fn main() {}
