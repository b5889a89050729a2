package sdk

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// Event is a CloudEvents 1.0 event, with its place in the log. A text attribute that
// the event does not have is empty.
type Event struct {
	// ID identifies the event together with Source.
	ID string
	// Source is the context in which the event happened: a URI-reference.
	Source string
	// Type is the kind of event.
	Type string
	// Subject is what the event is about, within Source.
	Subject string
	// Time is when the event happened: RFC 3339 text in UTC.
	Time string
	// DataContentType is the media type of Data; empty means application/json.
	DataContentType string
	// DataSchema is a URI that identifies the schema of Data.
	DataSchema string
	// PartitionKey is CloudEvents' partitioning extension: events of one key are ordered.
	PartitionKey string
	// Extensions are the other extension attributes: each a bool, an int32 or a string.
	Extensions map[string]any
	// Data is the payload, as the bytes that were published.
	Data []byte
	// Position is the event's place in the log. It grows along the log, with gaps.
	Position uint64
	// Attempt says which call this is for this event and consumer group, from 1.
	Attempt uint32
}

// JSON decodes the data, whatever its media type says, as [json.Unmarshal] does. The
// error is an [*InvalidEvent]: returned, it rejects the event.
func (e Event) JSON(value any) error {
	if len(e.Data) == 0 {
		return &InvalidEvent{What: "the event has no data"}
	}
	if err := json.Unmarshal(e.Data, value); err != nil {
		return &InvalidEvent{What: "the data is not the JSON that this handler takes", Cause: err}
	}
	return nil
}

// Text is the data as text. The error is an [*InvalidEvent] if it is no UTF-8.
func (e Event) Text() (string, error) {
	if !utf8.Valid(e.Data) {
		return "", &InvalidEvent{What: "the data is not UTF-8 text"}
	}
	return string(e.Data), nil
}

// Extension is an extension attribute of the event, and whether it has it. The error
// is an [*InvalidEvent] if it has another type.
func Extension[T bool | int32 | string](event Event, name string) (T, bool, error) {
	var value T
	given, ok := event.Extensions[name]
	if !ok {
		return value, false, nil
	}
	value, ok = given.(T)
	if !ok {
		what := fmt.Sprintf("the extension `%s` is %T, not %T: %v", name, given, value, given)
		return value, false, &InvalidEvent{What: what}
	}
	return value, true, nil
}

// InvalidEvent says that the event is not what the handler takes. Another attempt
// would meet the same event, so a handler that returns it, wrapped or not, rejects the
// event.
type InvalidEvent struct {
	// What says what is wrong.
	What string
	// Cause is the error behind it, or nil.
	Cause error
}

// Error is what is wrong and its cause.
func (e *InvalidEvent) Error() string {
	if e.Cause == nil {
		return e.What
	}
	return e.What + ": " + e.Cause.Error()
}

// Unwrap is the cause.
func (e *InvalidEvent) Unwrap() error { return e.Cause }
