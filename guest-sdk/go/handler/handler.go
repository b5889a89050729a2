// Package handler makes a program a handler of single events.
package handler

import (
	sdk "event-host.dev/sdk"
	"event-host.dev/sdk/internal/registry"
)

// Handle registers the handler. Call it in an init function: the host calls the handler
// without running main.
func Handle(handler func(sdk.Event) error) { registry.Event = handler }
