#!/bin/sh
# Builds both handlers into the folder $1; $WASI_CC and $WASI_CXX build for WASI.
set -eu
here=$(dirname "$0")
sdk=$here/../../c
wasm="--target=wasm32-wasi -Os"
for world in event batch; do
    file=handler name=cpp
    if [ $world = batch ]; then file=batch name=cpp-batch; fi
    ${WASI_CC:-zig cc} $wasm -c "$sdk/bindings/$world/host_bindings.c" -o "$1/$name.o"
    ${WASI_CXX:-zig c++} $wasm -mexec-model=reactor -std=c++23 -fno-exceptions -fno-rtti -Wall -Wextra -Werror \
        -Wl,-z,stack-size=65536 -I"$sdk/include" "$here/$file.cpp" "$1/$name.o" \
        "$sdk/bindings/$world/host_bindings_component_type.o" -o "$1/$name.wasm"
done
