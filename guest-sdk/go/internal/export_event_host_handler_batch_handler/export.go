//go:build wasip1

// Package export_event_host_handler_batch_handler is what the generated export of a
// handler of batches calls.
package export_event_host_handler_batch_handler

import (
	sdk "event-host.dev/sdk"
	"event-host.dev/sdk/internal/convert"
	"event-host.dev/sdk/internal/registry"
	witTypes "event-host.dev/sdk/internal/runtime/types"
	types "event-host.dev/sdk/internal/wit/imports/event_host_handler_types"
)

// HandleBatch calls the handler.
func HandleBatch(given []types.Event) []witTypes.Result[witTypes.Unit, types.Failure] {
	events := make([]sdk.Event, 0, len(given))
	for _, event := range given {
		events = append(events, convert.Event(event))
	}
	results := make([]witTypes.Result[witTypes.Unit, types.Failure], 0, len(given))
	for _, err := range sdk.GuardBatch(registry.Batch, events) {
		results = append(results, convert.Result(err))
	}
	return results
}
