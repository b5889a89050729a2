#!/bin/sh
# Builds both handlers into the folder $1.
set -eu
out=$(cd "$1" && pwd)
cd "$(dirname "$0")"
zig build --prefix "$out/zig-out"
mv "$out"/zig-out/bin/*.wasm "$out"
