// Package orders is what the conformance tests ask of a handler, of one event.
package orders

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"reflect"
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
	ID      int64   `json:"id"`
	Name    string  `json:"name"`
	Count   int64   `json:"count"`
	Attempt uint32  `json:"attempt"`
	Bytes   int     `json:"bytes"`
	Group   string  `json:"group"`
	Tenant  *string `json:"tenant"`
	Left    bool    `json:"left"`
	Replay  bool    `json:"replay"`
	Late    bool    `json:"late"`
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
	call := eh.Context
	eh.Log.Info("order %d of %s", data.ID, call.Group())
	switch data.Cmd {
	case "retry":
		if event.Attempt < 3 {
			return eh.Retry(50*time.Millisecond, "not yet: %d", event.Attempt)
		}
	case "never":
		return eh.Retry(50*time.Millisecond, "never")
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
	case "list":
		if err := list(); err != nil {
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
	answer := done{
		ID: data.ID, Name: *data.Name, Count: count + 1, Attempt: event.Attempt, Bytes: len(event.Data), Group: call.Group(),
		Left:   call.Remaining() > 0 && call.Remaining() <= 10*time.Second,
		Replay: call.IsReplay(), Late: call.IsLate(),
	}
	if tenant := call.Tenant(); tenant != "" {
		answer.Tenant = &tenant
	}
	return eh.Emit("order.done", answer, eh.Subject(strconv.FormatInt(data.ID, 10)), eh.WithAll(event.Extensions))
}

func list() error {
	wanted := []any{1.0, "ü", nil, map[string]any{"a": true}}
	var value []any
	if found, err := eh.State.Get("list", &value); err != nil || found && !reflect.DeepEqual(value, wanted) {
		return eh.Reject("another list: %v %v", value, err)
	}
	if err := eh.State.Set("list", wanted); err != nil {
		return err
	}
	value = nil
	if _, err := eh.State.Get("list", &value); err != nil || !reflect.DeepEqual(value, wanted) {
		return eh.Reject("not the list: %v %v", value, err)
	}
	return nil
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
