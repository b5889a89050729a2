package main

import (
	"testing"

	eh "event-host.dev/sdk"
	"event-host.dev/sdk/hosttest"
)

var placed = eh.Event{Type: "order.placed", Data: []byte(`{"id":7,"customer":"Ada"}`)}

func TestTheFirstOrderIsGreeted(t *testing.T) {
	result := hosttest.Call(t, handle, placed)
	if result.Err != nil || len(result.Emits) != 1 {
		t.Fatal(result)
	}
	hello := result.Emits[0]
	if hello.Type != "customer.greeted" || hello.Subject != "Ada" || string(hello.Data) != `{"text":"Hello, Ada!"}` {
		t.Error(hello)
	}
}

func TestLaterOrdersAreOnlyCounted(t *testing.T) {
	host := hosttest.New(t)
	host.SetState("orders/Ada", 4)
	result := host.Call(handle, placed)
	if result.Err != nil || len(result.Emits) != 0 {
		t.Error(result)
	}
	var orders int
	if host.State("orders/Ada", &orders); orders != 5 {
		t.Error(orders)
	}
}

func TestAnOrderOfNobodyIsRejected(t *testing.T) {
	result := hosttest.Call(t, handle, eh.Event{Type: "order.placed", Data: []byte(`{"id":8}`)})
	if result.Outcome.Kind != eh.Rejected || result.Outcome.Reason != "the order names no customer" {
		t.Error(result.Outcome)
	}
}
