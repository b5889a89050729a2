// Package orders is what the conformance tests ask of a handler, of one event.
package orders

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	eh "event-host.dev/sdk"
)

type order struct {
	ID   int64   `json:"id"`
	Name *string `json:"name"`
	Cmd  string  `json:"cmd"`
}

type done struct {
	ID      int64  `json:"id"`
	Name    string `json:"name"`
	Count   int64  `json:"count"`
	Attempt uint32 `json:"attempt"`
	Tenant  string `json:"tenant"`
	Replay  bool   `json:"replay"`
	Late    bool   `json:"late"`
}

// Handle handles one event.
func Handle(event eh.Event) error {
	var data order
	if err := event.JSON(&data); err != nil {
		return err
	}
	if data.Name == nil {
		return eh.Reject("the order has no name")
	}
	switch data.Cmd {
	case "retry":
		if event.Attempt < 3 {
			return eh.Retry(50*time.Millisecond, "not yet: %d", event.Attempt)
		}
	case "reject":
		return eh.Reject("no: %s", *data.Name)
	case "error":
		return errors.New("an ordinary error")
	case "boom":
		fmt.Fprintln(os.Stderr, "about to fall")
		var none []int
		none[3] = 1
	case "print":
		fmt.Println("printed")
	case "invalid":
		if err := eh.Emit("order.invalid", nil, eh.Subject("")); err != nil {
			return err
		}
	case "denied":
		if err := eh.Emit("secret.spilled", nil); err != nil {
			return err
		}
	case "empty":
		if err := eh.Emit("order.empty", nil); err != nil {
			return err
		}
	case "bytes":
		if err := roundtrip(); err != nil {
			return err
		}
	case "late":
		if event.Attempt < 2 {
			if err := eh.State.Set("count", -1); err != nil {
				return err
			}
			if err := eh.Emit("order.never", nil); err != nil {
				return err
			}
			return eh.Retry(eh.Backoff, "")
		}
	}

	count, err := eh.State.Int("count")
	if err != nil {
		return err
	}
	if err := eh.State.Set("count", count+1); err != nil {
		return err
	}
	call := eh.Context
	eh.Log.Info("order %d of %s", data.ID, call.Group())
	if call.Remaining() <= 0 {
		return errors.New("no time is left")
	}
	answer := done{data.ID, *data.Name, count + 1, event.Attempt, call.Tenant(), call.IsReplay(), call.IsLate()}
	return eh.Emit("order.done", answer, eh.Subject(strconv.FormatInt(data.ID, 10)), eh.WithAll(event.Extensions))
}

func roundtrip() error {
	value := []byte{0, 255}
	if err := eh.State.SetBytes("raw", value); err != nil {
		return err
	}
	read, found, err := eh.State.Bytes("raw")
	if err != nil || !found || !bytes.Equal(read, value) {
		return eh.Reject("other bytes: %v %v", read, err)
	}
	keys, err := eh.State.Keys("ra", 10)
	if err != nil || len(keys) != 1 || keys[0] != "raw" {
		return eh.Reject("other keys: %v %v", keys, err)
	}
	if err := eh.State.Delete("raw"); err != nil {
		return err
	}
	if _, found, err := eh.State.Bytes("raw"); err != nil || found {
		return eh.Reject("not deleted: %v", err)
	}
	return nil
}
