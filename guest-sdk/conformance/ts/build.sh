#!/bin/sh
# Builds both handlers into the folder $1, with the tools of the package or of the PATH.
set -eu
out=$(cd "$1" && pwd)
cd "$(dirname "$0")"
sdk=$(cd ../../js && pwd)
PATH=$sdk/node_modules/.bin:$PATH
tsc
for world in event-handler batch-event-handler; do
    file=handler name=ts
    if [ $world = batch-event-handler ]; then file=batch name=ts-batch; fi
    esbuild $file.ts --log-level=warning --bundle --format=esm --target=es2022 --conditions=event-host '--external:event-host:*' \
        "--alias:@event-host/sdk=$sdk/src/index.js" "--outfile=$out/$name.js"
    componentize-qjs --wit "$sdk/wit" --world $world --sync --js "$out/$name.js" --output "$out/$name.wasm"
done
