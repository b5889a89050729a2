package sdk

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"event-host.dev/sdk/internal/host"
)

// Option sets an attribute of an event that is emitted. What none sets is filled in by
// the host: an id that is the same on each attempt, the group as source, the time of
// the settlement, and the partition key of the handled event, or of a whole batch.
type Option func(*host.Message)

// ID sets the id, instead of one that is the same on each attempt.
func ID(id string) Option { return func(m *host.Message) { m.ID = &id } }

// Source sets the source, a URI-reference.
func Source(source string) Option { return func(m *host.Message) { m.Source = &source } }

// Subject sets what the event is about.
func Subject(subject string) Option { return func(m *host.Message) { m.Subject = &subject } }

// Time sets when it happened.
func Time(at time.Time) Option {
	text := at.UTC().Format(time.RFC3339Nano)
	return func(m *host.Message) { m.Time = &text }
}

// DataSchema sets the URI of the data's schema.
func DataSchema(uri string) Option { return func(m *host.Message) { m.DataSchema = &uri } }

// PartitionKey sets the key whose events are ordered.
func PartitionKey(key string) Option { return func(m *host.Message) { m.PartitionKey = &key } }

// DeliverAfter sets when the event is delivered at the earliest: at most 366 days from
// now.
func DeliverAfter(at time.Time) Option {
	return With("deliverafter", at.UTC().Format(time.RFC3339Nano))
}

// With sets an extension attribute; names are lower-case letters and digits.
func With[T bool | int32 | string](name string, value T) Option {
	return func(m *host.Message) { m.SetExtension(name, value) }
}

// WithAll sets extension attributes, such as those of an event: each a bool, an int32
// or a string. Emit fails if one is of another type.
func WithAll(extensions map[string]any) Option {
	return func(m *host.Message) {
		for name, value := range extensions {
			m.SetExtension(name, value)
		}
	}
}

// Emit publishes an event with data of JSON when, and only when, this call of the
// handler succeeds. Data of nil is none. The error is an [*EmitError].
func Emit(eventType string, data any, options ...Option) error {
	if data == nil {
		return emit(eventType, nil, "", options)
	}
	text, err := encode(data)
	if err != nil {
		return &EmitError{Kind: EmitInvalid, Text: fmt.Sprintf("the data of `%s` has no JSON form: %v", eventType, err)}
	}
	return emit(eventType, text, "application/json", options)
}

// EmitBytes publishes an event with these bytes as its data, and their media type.
func EmitBytes(eventType string, data []byte, dataContentType string, options ...Option) error {
	return emit(eventType, data, dataContentType, options)
}

func emit(eventType string, data []byte, dataContentType string, options []Option) error {
	message := host.Message{Type: eventType, Data: data}
	if dataContentType != "" {
		message.DataContentType = &dataContentType
	}
	for _, option := range options {
		option(&message)
	}
	if problem := message.Problem(); problem != "" {
		return &EmitError{Kind: EmitInvalid, Text: problem}
	}
	if failed := host.Emit(message); failed != nil {
		return &EmitError{Kind: EmitErrorKind(failed.Kind), Text: failed.Text}
	}
	return nil
}

// encode makes JSON without the escapes for HTML that [json.Marshal] makes: the same
// bytes as handlers in other languages.
func encode(value any) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), nil
}

// EmitErrorKind says why a message was not taken.
type EmitErrorKind int

// Why a message was not taken.
const (
	// EmitInvalid: an attribute breaks the CloudEvents specification.
	EmitInvalid EmitErrorKind = iota
	// EmitDenied: the handler's settings do not let it emit this type.
	EmitDenied
	// EmitOther is anything else.
	EmitOther
)

// EmitError is why a message was not taken. Returned from a handler it is a retry.
type EmitError struct {
	// Kind is why.
	Kind EmitErrorKind
	// Text says which attribute, and how.
	Text string
}

// Error is why, in words.
func (e *EmitError) Error() string {
	switch e.Kind {
	case EmitInvalid:
		return "cannot emit an invalid event: " + e.Text
	case EmitDenied:
		return "not allowed to emit: " + e.Text
	default:
		return "cannot emit: " + e.Text
	}
}
