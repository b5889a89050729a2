//go:build wasip1

// Package export_event_host_handler_handler is what the generated export of a handler of
// single events calls.
package export_event_host_handler_handler

import (
	sdk "event-host.dev/sdk"
	"event-host.dev/sdk/internal/convert"
	"event-host.dev/sdk/internal/registry"
	witTypes "event-host.dev/sdk/internal/runtime/types"
	types "event-host.dev/sdk/internal/wit/imports/event_host_handler_types"
)

// Handle calls the handler.
func Handle(event types.Event) witTypes.Result[witTypes.Unit, types.Failure] {
	return convert.Result(sdk.Guard(registry.Event, convert.Event(event)))
}
