#!/bin/sh
# Keeps handlers as components of the version $1: those in C, Zig and WAT that `cargo xtask sdks` built, and
# those in Rust, which are built here without the paths of this machine in them.
set -eu
version=${1:?usage: make.sh VERSION}
here=$(cd "$(dirname "$0")" && pwd)
target=$here/../../target
folder=$here/$version
if [ -e "$folder" ]; then
    echo "error: $folder is there: what was kept never changes" >&2
    exit 1
fi
# Whole or not at all: a component that is missing leaves no folder.
new=$target/kept/new
rm -rf "$new"
mkdir -p "$new"
trap 'rm -rf "$new"' EXIT
for name in c c-batch zig; do
    cp "$target/sdks/$name.wasm" "$new/$name.wasm"
done
cp "$target/sdks/wat.wasm" "$new/wat.wat"

rust() {
    CARGO_TARGET_DIR=$target/kept cargo build --release --locked --target wasm32-unknown-unknown --manifest-path "$@"
}
root=$(cd "$here/../.." && pwd)
RUSTFLAGS="--remap-path-prefix=$root=project"
for source in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*; do
    RUSTFLAGS="$RUSTFLAGS --remap-path-prefix=$source=crates"
done
export RUSTFLAGS
rust "$root/guest-sdk/conformance/rust/Cargo.toml"
rust "$root/tests/guests/Cargo.toml" --package stranger
built=$target/kept/wasm32-unknown-unknown/release
cp "$built/conformance_rust.wasm" "$new/rust.wasm"
cp "$built/conformance_rust_batch.wasm" "$new/rust-batch.wasm"
cp "$built/stranger.wasm" "$new/stranger.wasm"
chmod 644 "$new"/*
mv "$new" "$folder"
du -ck "$folder"/* | tail -1
