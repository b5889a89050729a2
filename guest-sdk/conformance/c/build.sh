#!/bin/sh
# Builds both handlers into the folder $1; $WASI_CC builds for WASI, such as `zig cc`.
set -eu
here=$(dirname "$0")
sdk=$here/../../c
for world in event batch; do
    file=handler name=c
    if [ $world = batch ]; then file=batch name=c-batch; fi
    ${WASI_CC:-zig cc} --target=wasm32-wasi -mexec-model=reactor -Os -Wall -Wextra -Werror -Wl,-z,stack-size=65536 \
        -I"$sdk/include" "$here/$file.c" "$sdk/bindings/$world/host_bindings.c" \
        "$sdk/bindings/$world/host_bindings_component_type.o" -o "$1/$name.wasm"
done
