// Command build builds a handler: a program for WASI's first preview, with the metadata
// of the contract, which a host takes as it is.
//
//	go run event-host.dev/sdk/cmd/build -o hello.wasm .
//
// It calls `go build` with the settings that a handler needs, and appends the metadata.
package main

import (
	"bytes"
	_ "embed"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

//go:embed metadata/event.bin
var event []byte

//go:embed metadata/batch.bin
var batch []byte

func main() {
	output := flag.String("o", "handler.wasm", "the file to write")
	flag.Parse()
	if err := build(*output, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func build(output string, packages []string) error {
	folder, err := os.MkdirTemp("", "handler")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	core := filepath.Join(folder, "core.wasm")
	arguments := []string{"build", "-trimpath", "-buildmode=c-shared", "-ldflags=-s -w -checklinkname=0", "-o", core}
	command := exec.Command("go", append(arguments, packages...)...)
	command.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	if err := command.Run(); err != nil {
		return fmt.Errorf("go build: %w", err)
	}
	module, err := os.ReadFile(core)
	if err != nil {
		return err
	}
	component, err := withMetadata(module)
	if err != nil {
		return err
	}
	// The old file stays until the new one is whole.
	whole := output + ".new"
	if err := os.WriteFile(whole, component, 0o644); err != nil {
		return err
	}
	return os.Rename(whole, output)
}

// withMetadata appends the metadata of the interface that the module exports.
func withMetadata(module []byte) ([]byte, error) {
	single := bytes.Contains(module, []byte("event-host:handler/handler@0.1.0#handle"))
	several := bytes.Contains(module, []byte("event-host:handler/batch-handler@0.1.0#handle-batch"))
	switch {
	case single && several:
		return nil, errors.New("the program is a handler of single events and of batches: import only one of the packages handler and batch")
	case single:
		return append(module, section("component-type:event", event)...), nil
	case several:
		return append(module, section("component-type:batch", batch)...), nil
	default:
		return nil, errors.New("the program has no handler: import the package handler or batch, and call its Handle in an init function")
	}
}

// section is a custom section of a module: 0, its length, the length of its name, name, data.
func section(name string, data []byte) []byte {
	content := binary.AppendUvarint(nil, uint64(len(name)))
	content = append(append(content, name...), data...)
	return append(binary.AppendUvarint([]byte{0}, uint64(len(content))), content...)
}
