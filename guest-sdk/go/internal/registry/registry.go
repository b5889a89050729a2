// Package registry holds the handler that a program registered.
package registry

import (
	"errors"

	sdk "event-host.dev/sdk"
)

// ErrNone is the error of each event in a program that registered no handler.
var ErrNone = errors.New("no handler is registered: call Handle in an init function")

// Event handles one event.
var Event = func(sdk.Event) error { return ErrNone }

// Batch handles several events.
var Batch = func(events []sdk.Event) []error {
	errs := make([]error, len(events))
	for i := range errs {
		errs[i] = ErrNone
	}
	return errs
}
