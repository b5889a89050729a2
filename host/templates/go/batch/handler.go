// Counts orders, with one write to the state and one event for all orders of a call.
package main

import (
	eh "event-host.dev/sdk"
	"event-host.dev/sdk/batch"
)

type order struct {
	Customer string `json:"customer"`
}

type counted struct {
	Orders int   `json:"orders"`
	Total  int64 `json:"total"`
}

// Gives an error, or nil, for each event. If one is an error, nothing of the call counts,
// and the host calls again with each event by itself.
func handle(events []eh.Event) []error {
	errs := make([]error, len(events))
	failed := false
	for i, event := range events {
		errs[i] = check(event)
		failed = failed || errs[i] != nil
	}
	if failed {
		return errs
	}
	if err := count(len(events)); err != nil {
		for i := range errs {
			errs[i] = err
		}
	}
	return errs
}

func check(event eh.Event) error {
	var placed order
	if err := event.JSON(&placed); err != nil {
		return err
	}
	if placed.Customer == "" {
		return eh.Reject("the order names no customer")
	}
	return nil
}

func count(orders int) error {
	total, err := eh.State.Int("orders")
	if err != nil {
		return err
	}
	total += int64(orders)
	if err := eh.State.Set("orders", total); err != nil {
		return err
	}
	eh.Log.Info("%d orders, %d in all", orders, total)
	return eh.Emit("orders.counted", counted{orders, total})
}

func init() { batch.Handle(handle) }

func main() {}
