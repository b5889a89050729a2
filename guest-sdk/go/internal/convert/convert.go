//go:build wasip1

// Package convert turns the types of the bindings into those of the SDK, and back.
package convert

import (
	"time"

	sdk "event-host.dev/sdk"
	witTypes "event-host.dev/sdk/internal/runtime/types"
	types "event-host.dev/sdk/internal/wit/imports/event_host_handler_types"
)

// Event is the event as the SDK has it.
func Event(from types.Event) sdk.Event {
	extensions := make(map[string]any, len(from.Extensions))
	for _, extension := range from.Extensions {
		switch value := extension.F1; value.Tag() {
		case types.ExtensionValue_Boolean:
			extensions[extension.F0] = value.Boolean()
		case types.ExtensionValue_Integer:
			extensions[extension.F0] = value.Integer()
		default:
			extensions[extension.F0] = value.Text()
		}
	}
	return sdk.Event{
		ID:              from.Id,
		Source:          from.Source,
		Type:            from.Type,
		Subject:         from.Subject.SomeOr(""),
		Time:            from.Time,
		DataContentType: from.Datacontenttype.SomeOr(""),
		DataSchema:      from.Dataschema.SomeOr(""),
		PartitionKey:    from.Partitionkey.SomeOr(""),
		Extensions:      extensions,
		Data:            from.Data,
		Position:        from.Position,
		Attempt:         from.Attempt,
	}
}

// Result is what the host is told of a handler's error.
func Result(err error) witTypes.Result[witTypes.Unit, types.Failure] {
	outcome := sdk.OutcomeOf(err)
	switch outcome.Kind {
	case sdk.Done:
		return witTypes.Ok[witTypes.Unit, types.Failure](witTypes.Unit{})
	case sdk.Rejected:
		return witTypes.Err[witTypes.Unit](types.MakeFailureReject(outcome.Reason))
	default:
		after := witTypes.None[uint64]()
		if outcome.After != sdk.Backoff {
			after = witTypes.Some(wholeMilliseconds(outcome.After))
		}
		return witTypes.Err[witTypes.Unit](types.MakeFailureRetry(types.Retry{Reason: outcome.Reason, AfterMs: after}))
	}
}

// wholeMilliseconds rounds up: it is the least time to wait.
func wholeMilliseconds(delay time.Duration) uint64 {
	whole := uint64(delay / time.Millisecond)
	if delay%time.Millisecond > 0 {
		whole++
	}
	return whole
}
