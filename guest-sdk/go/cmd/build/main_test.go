package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestAModuleGetsTheMetadataOfWhatItExports(t *testing.T) {
	single, err := withMetadata([]byte("..event-host:handler/handler@0.1.0#handle.."))
	if err != nil || !bytes.HasSuffix(single, event) {
		t.Error(err)
	}
	several, err := withMetadata([]byte("..event-host:handler/batch-handler@0.1.0#handle-batch.."))
	if err != nil || !bytes.HasSuffix(several, batch) {
		t.Error(err)
	}
	for _, text := range []string{"", "event-host:handler/handler@0.1.0#handle event-host:handler/batch-handler@0.1.0#handle-batch"} {
		if _, err := withMetadata([]byte(text)); err == nil || !strings.HasPrefix(err.Error(), "the program ") {
			t.Error(err)
		}
	}
}

func TestASectionSaysItsLengths(t *testing.T) {
	if got := section("ab", []byte("xyz")); string(got) != "\x00\x06\x02abxyz" {
		t.Errorf("%q", got)
	}
	long := section("n", make([]byte, 200))
	if string(long[:5]) != "\x00\xca\x01\x01n" {
		t.Errorf("%q", long[:5])
	}
}
