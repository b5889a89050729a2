#!/bin/sh
# Builds the handlers of JavaScript with the engine StarlingMonkey into the folder $1.
set -eu
out=$(cd "$1" && pwd)
cd "$(dirname "$0")/../js"
sdk=$(cd ../../js && pwd)
PATH=$sdk/node_modules/.bin:$PATH
for world in event-handler batch-event-handler; do
    file=handler name=js-starlingmonkey
    if [ $world = batch-event-handler ]; then file=batch name=js-starlingmonkey-batch; fi
    esbuild $file.js --log-level=warning --bundle --format=esm --target=es2022 --conditions=event-host '--external:event-host:*' \
        "--alias:@event-host/sdk=$sdk/src/index.js" "--outfile=$out/$name.js"
    componentize-js "$out/$name.js" --wit "$sdk/wit" --world-name $world --out "$out/$name.wasm"
done
