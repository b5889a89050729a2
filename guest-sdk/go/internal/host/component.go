//go:build wasip1

package host

import (
	witTypes "event-host.dev/sdk/internal/runtime/types"
	context "event-host.dev/sdk/internal/wit/imports/event_host_handler_context"
	log "event-host.dev/sdk/internal/wit/imports/event_host_handler_log"
	outbox "event-host.dev/sdk/internal/wit/imports/event_host_handler_outbox"
	state "event-host.dev/sdk/internal/wit/imports/event_host_handler_state"
	types "event-host.dev/sdk/internal/wit/imports/event_host_handler_types"
)

func option(text *string) witTypes.Option[string] {
	if text == nil {
		return witTypes.None[string]()
	}
	return witTypes.Some(*text)
}

// Emit emits an event.
func Emit(message Message) *Failed {
	extensions := make([]witTypes.Tuple2[string, types.ExtensionValue], 0, len(message.Extensions))
	for _, extension := range message.Extensions {
		var value types.ExtensionValue
		switch given := extension.Value.(type) {
		case bool:
			value = types.MakeExtensionValueBoolean(given)
		case int32:
			value = types.MakeExtensionValueInteger(given)
		case string:
			value = types.MakeExtensionValueText(given)
		}
		extensions = append(extensions, witTypes.Tuple2[string, types.ExtensionValue]{F0: extension.Name, F1: value})
	}
	result := outbox.Emit(outbox.Message{
		Type:            message.Type,
		Data:            message.Data,
		Id:              option(message.ID),
		Source:          option(message.Source),
		Subject:         option(message.Subject),
		Time:            option(message.Time),
		Datacontenttype: option(message.DataContentType),
		Dataschema:      option(message.DataSchema),
		Partitionkey:    option(message.PartitionKey),
		Extensions:      extensions,
	})
	if result.Tag() == witTypes.ResultOk {
		return nil
	}
	failed := result.Err()
	switch failed.Tag() {
	case outbox.EmitError_Invalid:
		return &Failed{0, failed.Invalid()}
	case outbox.EmitError_Denied:
		return &Failed{1, failed.Denied()}
	default:
		return &Failed{2, failed.Other()}
	}
}

func stateFailed(failed state.StateError) *Failed {
	if failed.Tag() == state.StateError_InvalidKey {
		return &Failed{0, failed.InvalidKey()}
	}
	return &Failed{1, failed.Other()}
}

// StateGet reads a value.
func StateGet(key string) ([]byte, bool, *Failed) {
	result := state.Get(key)
	if result.Tag() == witTypes.ResultErr {
		return nil, false, stateFailed(result.Err())
	}
	found := result.Ok()
	if found.Tag() == witTypes.OptionNone {
		return nil, false, nil
	}
	return found.Some(), true, nil
}

// StateSet writes a value.
func StateSet(key string, value []byte) *Failed {
	if result := state.Set(key, value); result.Tag() == witTypes.ResultErr {
		return stateFailed(result.Err())
	}
	return nil
}

// StateDelete removes a value.
func StateDelete(key string) *Failed {
	if result := state.Delete(key); result.Tag() == witTypes.ResultErr {
		return stateFailed(result.Err())
	}
	return nil
}

// StateKeys lists keys.
func StateKeys(prefix string, limit uint32) ([]string, *Failed) {
	result := state.Keys(prefix, limit)
	if result.Tag() == witTypes.ResultErr {
		return nil, stateFailed(result.Err())
	}
	return result.Ok(), nil
}

// Log writes a line.
func Log(level uint8, line string) { log.Log(log.Level(level), line) }

// Group is the group's name.
func Group() string { return context.Group() }

// Tenant is the tenant's name, or empty.
func Tenant() string { return context.Tenant() }

// RemainingMS is how many milliseconds are left.
func RemainingMS() uint64 { return context.RemainingMs() }

// IsReplay says whether the event was replayed.
func IsReplay() bool { return context.IsReplay() }

// IsLate says whether the event is late.
func IsLate() bool { return context.IsLate() }
