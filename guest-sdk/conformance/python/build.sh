#!/bin/sh
# Builds both handlers into the folder $1.
set -eu
out=$(cd "$1" && pwd)
cd "$(dirname "$0")"
componentize-py --world event-handler componentize --python-path ../../python --python-path . app --output "$out/python.wasm"
componentize-py --world batch-event-handler componentize --python-path ../../python --python-path . batch --output "$out/python-batch.wasm"
