// Package batch makes a program a handler of batches.
//
// What is emitted and written in a call belongs to all its events together. It is kept
// when every result is nil. Else, and after a panic, nothing of the call counts, and the
// same events come again one by one, each in a call of its own.
package batch

import (
	sdk "event-host.dev/sdk"
	"event-host.dev/sdk/internal/registry"
)

// Handle registers the handler, which gives one error, or nil, for each event, in the
// same order. Call it in an init function: the host calls the handler without running
// main.
func Handle(handler func([]sdk.Event) []error) { registry.Batch = handler }
