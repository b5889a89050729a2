#!/bin/sh
# Builds both handlers into the folder $1. $EMBED gives a core module the metadata of the
# contract: `bindings-generator embed`.
set -eu
out=$(cd "$1" && pwd)
cd "$(dirname "$0")"
for world in event batch; do
    package=handler name=go
    if [ $world = batch ]; then package=batch name=go-batch; fi
    GOOS=wasip1 GOARCH=wasm go build -trimpath -buildmode=c-shared -ldflags='-s -w -checklinkname=0' \
        -o "$out/$name.core.wasm" ./$package
    $EMBED $world "$out/$name.core.wasm" "$out/$name.wasm"
done
