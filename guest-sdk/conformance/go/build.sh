#!/bin/sh
# Builds both handlers into the folder $1.
set -eu
out=$(cd "$1" && pwd)
cd "$(dirname "$0")"
go run event-host.dev/sdk/cmd/build -o "$out/go.wasm" ./handler
go run event-host.dev/sdk/cmd/build -o "$out/go-batch.wasm" ./batch
