package main

import (
	"testing"

	eh "event-host.dev/sdk"
	"event-host.dev/sdk/hosttest"
)

var placed = eh.Event{Type: "order.placed", Data: []byte(`{"id":7,"customer":"Ada"}`)}

func TestOrdersAreCountedTogether(t *testing.T) {
	host := hosttest.New(t)
	host.SetState("orders", 4)
	results := host.CallBatch(handle, []eh.Event{placed, placed})
	for _, result := range results {
		if result.Err != nil {
			t.Error(result)
		}
	}
	var total int
	if host.State("orders", &total); total != 6 {
		t.Error(total)
	}
}

func TestAnOrderOfNobodyIsRejected(t *testing.T) {
	host := hosttest.New(t)
	nobody := eh.Event{Type: "order.placed", Data: []byte(`{"id":8}`)}
	results := host.CallBatch(handle, []eh.Event{placed, nobody})
	if results[0].Err != nil {
		t.Error(results[0])
	}
	if rejected := results[1].Outcome; rejected.Kind != eh.Rejected || rejected.Reason != "the order names no customer" {
		t.Error(rejected)
	}
}
