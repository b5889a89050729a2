// A handler of batches.
package main

import (
	"conformance/orders"

	eh "event-host.dev/sdk"
	"event-host.dev/sdk/batch"
)

func init() {
	batch.Handle(func(events []eh.Event) []error {
		eh.Log.Info("batch of %d", len(events))
		errs := make([]error, 0, len(events))
		for _, event := range events {
			errs = append(errs, orders.Handle(event))
		}
		return errs
	})
}

func main() {}
