//! Rebuilds the library when a migration is added: they are embedded in it.

fn main() {
    println!("cargo:rerun-if-changed=../migrations");
}
