#!/bin/sh
# Builds both handlers into the folder $1.
set -eu
out=$(cd "$1" && pwd)
cd "$(dirname "$0")"
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
export CARGO_TARGET_DIR
cargo build --release --target wasm32-unknown-unknown
built=$CARGO_TARGET_DIR/wasm32-unknown-unknown/release
cp "$built/conformance_rust.wasm" "$out/rust.wasm"
cp "$built/conformance_rust_batch.wasm" "$out/rust-batch.wasm"
