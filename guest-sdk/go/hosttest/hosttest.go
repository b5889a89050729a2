//go:build !wasip1

// Package hosttest is a host in memory, for unit tests of handlers. They run with
// `go test`, without WebAssembly.
//
//	func TestOrders(t *testing.T) {
//		host := hosttest.New(t)
//		host.SetState("count", 4)
//		result := host.Call(handle, eh.Event{Type: "order.placed", Data: []byte(`{"id":7}`)})
//		if result.Outcome.Kind != eh.Done || result.Emits[0].Type != "order.seen" {
//			t.Fatal(result)
//		}
//	}
//
// It has the semantics of one call: what a call emits and writes counts only if it
// succeeds. It knows no limits, and does not check that an emitted event is a CloudEvent,
// but for an empty type.
package hosttest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	sdk "event-host.dev/sdk"
	"event-host.dev/sdk/internal/host"
)

// Host is a host in memory. Its state lives as long as it.
type Host struct {
	// Group is what sdk.Context.Group gives.
	Group string
	// Tenant is what sdk.Context.Tenant gives.
	Tenant string
	// RemainingMS is how many milliseconds sdk.Context.Remaining gives.
	RemainingMS uint64
	// Replay is what sdk.Context.IsReplay gives.
	Replay bool
	// Late is what sdk.Context.IsLate gives.
	Late bool
	// MayEmit says whether a type may be emitted; nil: every type.
	MayEmit func(eventType string) bool
	// Lines are what was logged, each with its level: `info: text`.
	Lines []string

	t     testing.TB
	state map[string][]byte
}

// Result is how a call ended.
type Result struct {
	// Outcome is what the host does with the event.
	Outcome sdk.Outcome
	// Err is what the handler returned, or the error that its panic became.
	Err error
	// Emits are the events that were emitted: none unless the call succeeded.
	Emits []Message
}

// Message is an event that was emitted. A text that was not set is empty.
type Message struct {
	Type, ID, Source, Subject, Time           string
	DataContentType, DataSchema, PartitionKey string
	Extensions                                map[string]any
	Data                                      []byte
}

// JSON decodes the data.
func (m Message) JSON(value any) error { return json.Unmarshal(m.Data, value) }

// New makes a host whose group is `test`, without tenant, with 10 s left in each call.
// Lines of the log go to the test's log as well.
func New(t testing.TB) *Host {
	return &Host{Group: "test", RemainingMS: 10_000, t: t, state: map[string][]byte{}}
}

// Call calls a handler with an event on a host of its own.
func Call(t testing.TB, handler func(sdk.Event) error, event sdk.Event) Result {
	t.Helper()
	return New(t).Call(handler, event)
}

// Call calls a handler with an event. What is left out of the event is filled in: a type
// and data are enough.
func (h *Host) Call(handler func(sdk.Event) error, event sdk.Event) Result {
	h.t.Helper()
	var err error
	emits := h.settle(func() bool {
		err = sdk.Guard(handler, filled(event))
		return err == nil
	})
	return Result{Outcome: sdk.OutcomeOf(err), Err: err, Emits: emits}
}

// CallBatch calls a handler of batches as the host does, and gives one result for each
// event. If one is no success, nothing of the call counts, and each event comes again in
// a call of its own. What a call of several events emits is in the result of the last.
func (h *Host) CallBatch(handler func([]sdk.Event) []error, events []sdk.Event) []Result {
	h.t.Helper()
	given := make([]sdk.Event, 0, len(events))
	for _, event := range events {
		given = append(given, filled(event))
	}
	var errs []error
	failed := func(err error) bool { return err != nil }
	emits := h.settle(func() bool {
		errs = sdk.GuardBatch(handler, given)
		return !slices.ContainsFunc(errs, failed)
	})
	results := make([]Result, 0, len(events))
	if slices.ContainsFunc(errs, failed) && len(events) > 1 {
		for _, event := range given {
			results = append(results, h.CallBatch(handler, []sdk.Event{event})...)
		}
		return results
	}
	for _, err := range errs {
		results = append(results, Result{Outcome: sdk.OutcomeOf(err), Err: err})
	}
	if len(results) > 0 {
		results[len(results)-1].Emits = emits
	}
	return results
}

// settle runs a call and keeps what it did if it succeeded.
func (h *Host) settle(call func() bool) []Message {
	current := &running{Host: h, state: maps.Clone(h.state)}
	succeeded := false
	host.Within(current, func() { succeeded = call() })
	if !succeeded {
		return nil
	}
	h.state = current.state
	return current.emits
}

func filled(event sdk.Event) sdk.Event {
	texts := []struct {
		place *string
		text  string
	}{{&event.ID, "test"}, {&event.Source, "/test"}, {&event.Type, "test"}, {&event.Time, "2026-01-01T00:00:00Z"}}
	for _, text := range texts {
		if *text.place == "" {
			*text.place = text.text
		}
	}
	event.Position = max(event.Position, 1)
	event.Attempt = max(event.Attempt, 1)
	return event
}

// State decodes the value of a key from JSON. The test fails if the key has none, or
// another one than fits.
func (h *Host) State(key string, value any) {
	h.t.Helper()
	text, found := h.state[key]
	if !found {
		h.t.Fatalf("the state has no `%s`", key)
	}
	if err := json.Unmarshal(text, value); err != nil {
		h.t.Fatalf("the state's `%s`: %v", key, err)
	}
}

// SetState gives a key a value, as JSON, as if an earlier call had.
func (h *Host) SetState(key string, value any) {
	h.t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		h.t.Fatalf("the state's `%s`: %v", key, err)
	}
	h.state[key] = text
}

// StateBytes are the bytes of a key, or nil if it has none.
func (h *Host) StateBytes(key string) []byte { return slices.Clone(h.state[key]) }

// running is the host as a call sees it.
type running struct {
	*Host
	state map[string][]byte
	emits []Message
}

func (c *running) Emit(message host.Message) *host.Failed {
	if message.Type == "" {
		return &host.Failed{Kind: 0, Text: "`type` is empty"}
	}
	if c.MayEmit != nil && !c.MayEmit(message.Type) {
		return &host.Failed{Kind: 1, Text: fmt.Sprintf("the handler may not emit `%s`", message.Type)}
	}
	text := func(given *string) string {
		if given == nil {
			return ""
		}
		return *given
	}
	emitted := Message{
		Type: message.Type, ID: text(message.ID), Source: text(message.Source), Subject: text(message.Subject),
		Time: text(message.Time), DataContentType: text(message.DataContentType), DataSchema: text(message.DataSchema),
		PartitionKey: text(message.PartitionKey), Extensions: map[string]any{}, Data: slices.Clone(message.Data),
	}
	for _, extension := range message.Extensions {
		emitted.Extensions[extension.Name] = extension.Value
	}
	c.emits = append(c.emits, emitted)
	return nil
}

func (c *running) StateGet(key string) ([]byte, bool, *host.Failed) {
	value, found := c.state[key]
	return slices.Clone(value), found, checked(key)
}

func (c *running) StateSet(key string, value []byte) *host.Failed {
	if failed := checked(key); failed != nil {
		return failed
	}
	c.state[key] = append([]byte{}, value...)
	return nil
}

func (c *running) StateDelete(key string) *host.Failed {
	delete(c.state, key)
	return checked(key)
}

func (c *running) StateKeys(prefix string, limit uint32) ([]string, *host.Failed) {
	keys := slices.Sorted(maps.Keys(c.state))
	keys = slices.DeleteFunc(keys, func(key string) bool { return !strings.HasPrefix(key, prefix) })
	return keys[:min(len(keys), int(limit))], nil
}

func checked(key string) *host.Failed {
	switch {
	case key == "":
		return &host.Failed{Kind: 0, Text: "it is empty"}
	case len(key) > 1024:
		return &host.Failed{Kind: 0, Text: fmt.Sprintf("it has %d bytes, over 1,024", len(key))}
	default:
		return nil
	}
}

func (c *running) Log(level uint8, line string) {
	line = []string{"trace", "debug", "info", "warn", "error"}[level] + ": " + line
	c.Lines = append(c.Lines, line)
	c.t.Log(line)
}

func (c *running) Group() string       { return c.Host.Group }
func (c *running) Tenant() string      { return c.Host.Tenant }
func (c *running) RemainingMS() uint64 { return c.Host.RemainingMS }
func (c *running) IsReplay() bool      { return c.Host.Replay }
func (c *running) IsLate() bool        { return c.Host.Late }
