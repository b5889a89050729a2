package sdk

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"event-host.dev/sdk/internal/host"
)

// State holds the small durable values of the consumer group. Reads see the writes of
// the same call; writes are kept when, and only when, the call succeeds. Values are kept
// as JSON text, which handlers in every language read alike. All errors are a
// [*StateError].
var State stateOfGroup

type stateOfGroup struct{}

// Get decodes the value of a key from JSON, and says whether the key has one.
func (s stateOfGroup) Get(key string, value any) (bool, error) {
	text, found, err := s.Bytes(key)
	if err != nil || !found {
		return false, err
	}
	if err := json.Unmarshal(text, value); err != nil {
		what := fmt.Sprintf("the state's `%s` is not the JSON that this handler takes", key)
		return false, &StateError{Kind: StateDecode, Text: what, Cause: err}
	}
	return true, nil
}

// Set gives a key a value, as JSON.
func (s stateOfGroup) Set(key string, value any) error {
	text, err := encode(value)
	if err != nil {
		what := fmt.Sprintf("the new value of the state's `%s` has no JSON form", key)
		return &StateError{Kind: StateEncode, Text: what, Cause: err}
	}
	return s.SetBytes(key, text)
}

// Int is the value of a key as a whole number: 0 if the key has none.
func (s stateOfGroup) Int(key string) (int64, error) {
	var number int64
	_, err := s.Get(key, &number)
	return number, err
}

// Bytes is the value of a key as the bytes that were set, and whether the key has one.
func (stateOfGroup) Bytes(key string) ([]byte, bool, error) {
	if err := utf8Key(key); err != nil {
		return nil, false, err
	}
	value, found, failed := host.StateGet(key)
	return value, found, stateError(failed)
}

// SetBytes gives a key a value of bytes.
func (stateOfGroup) SetBytes(key string, value []byte) error {
	if err := utf8Key(key); err != nil {
		return err
	}
	return stateError(host.StateSet(key, value))
}

// Delete removes a key; one that is absent is no error.
func (stateOfGroup) Delete(key string) error {
	if err := utf8Key(key); err != nil {
		return err
	}
	return stateError(host.StateDelete(key))
}

// Keys are the first keys, at most limit, that start with prefix, sorted by their bytes.
func (stateOfGroup) Keys(prefix string, limit uint32) ([]string, error) {
	if err := utf8Key(prefix); err != nil {
		return nil, err
	}
	keys, failed := host.StateKeys(prefix, limit)
	return keys, stateError(failed)
}

// utf8Key refuses what the host could not take as text.
func utf8Key(key string) error {
	if !utf8.ValidString(key) {
		return &StateError{Kind: StateInvalidKey, Text: fmt.Sprintf("%q is not UTF-8", key)}
	}
	return nil
}

func stateError(failed *host.Failed) error {
	switch {
	case failed == nil:
		return nil
	case failed.Kind == 0:
		return &StateError{Kind: StateInvalidKey, Text: failed.Text}
	default:
		return &StateError{Kind: StateOther, Text: failed.Text}
	}
}

// StateErrorKind says why a state operation failed.
type StateErrorKind int

// Why a state operation failed.
const (
	// StateInvalidKey: the key is empty or too long.
	StateInvalidKey StateErrorKind = iota
	// StateDecode: the stored value is not what the handler wants.
	StateDecode
	// StateEncode: the new value has no JSON form.
	StateEncode
	// StateOther is anything else that the host says.
	StateOther
)

// StateError is why a state operation failed. Returned from a handler it is a retry.
type StateError struct {
	// Kind is why.
	Kind StateErrorKind
	// Text says what.
	Text string
	// Cause is the error of the JSON, or nil.
	Cause error
}

// Error is why, in words.
func (e *StateError) Error() string {
	switch {
	case e.Kind == StateInvalidKey:
		return "not a key of the state: " + e.Text
	case e.Kind == StateOther:
		return "the state is not available: " + e.Text
	case e.Cause != nil:
		return e.Text + ": " + e.Cause.Error()
	default:
		return e.Text
	}
}

// Unwrap is the error of the JSON, or nil.
func (e *StateError) Unwrap() error { return e.Cause }
