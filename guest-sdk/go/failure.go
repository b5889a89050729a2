package sdk

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"
)

// Backoff leaves the time until the next attempt to the handler's retry settings.
const Backoff time.Duration = -1

// RetryError is what [Retry] makes.
type RetryError struct {
	// After is the least time to wait before the next attempt, or [Backoff].
	After time.Duration
	err   error
}

// Error is the reason.
func (e *RetryError) Error() string { return e.err.Error() }

// Unwrap is what the reason was made of.
func (e *RetryError) Unwrap() error { return errors.Unwrap(e.err) }

// RejectError is what [Reject] makes.
type RejectError struct{ err error }

// Error is the reason.
func (e *RejectError) Error() string { return e.err.Error() }

// Unwrap is what the reason was made of.
func (e *RejectError) Unwrap() error { return errors.Unwrap(e.err) }

// Retry is the error of a handler whose event may be handled later: the host calls
// again, after at least this time, until the configured attempts are used up; then the
// event becomes a dead letter. The reason is made as by [fmt.Errorf].
func Retry(after time.Duration, reason string, args ...any) error {
	return &RetryError{After: after, err: fmt.Errorf(reason, args...)}
}

// Reject is the error of a handler whose event will never be handled: it becomes a
// dead letter at once. The reason is made as by [fmt.Errorf].
func Reject(reason string, args ...any) error {
	return &RejectError{err: fmt.Errorf(reason, args...)}
}

// OutcomeKind is what the host does with an event after a call.
type OutcomeKind int

// What the host does with an event after a call.
const (
	// Done: the event is handled.
	Done OutcomeKind = iota
	// Retried: the host calls again later.
	Retried
	// Rejected: the event is a dead letter.
	Rejected
)

// String is the kind in a word.
func (k OutcomeKind) String() string {
	switch k {
	case Done:
		return "done"
	case Retried:
		return "retry"
	default:
		return "reject"
	}
}

// Outcome is what a handler's error means to the host.
type Outcome struct {
	// Kind is what the host does.
	Kind OutcomeKind
	// Reason says why; empty if the event is done.
	Reason string
	// After is the least time to wait before the next attempt, or [Backoff].
	After time.Duration
}

// OutcomeOf is what the host does when a handler returns this error.
func OutcomeOf(err error) Outcome {
	if err == nil {
		return Outcome{After: Backoff}
	}
	reason := strings.ToValidUTF8(err.Error(), "\uFFFD")
	var retry *RetryError
	var reject *RejectError
	var invalid *InvalidEvent
	switch {
	case errors.As(err, &retry):
		return Outcome{Kind: Retried, Reason: reason, After: max(retry.After, Backoff)}
	case errors.As(err, &reject), errors.As(err, &invalid):
		return Outcome{Kind: Rejected, Reason: reason, After: Backoff}
	default:
		return Outcome{Kind: Retried, Reason: reason, After: Backoff}
	}
}

// PanicError is what a panic of a handler becomes: a retry with the panic and its stack
// as the reason. Left to itself, it would end the instance.
type PanicError struct {
	// Value is what the handler panicked with.
	Value any
	// Stack is the stack at the panic.
	Stack string
}

// Error is the panic and its stack.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.Value, e.Stack) }

// Recovered gives err, or, deferred in a call that panicked, the panic as an error.
func recovered(err *error) {
	if value := recover(); value != nil {
		*err = &PanicError{Value: value, Stack: stackOfPanic(string(debug.Stack()))}
	}
}

// stackOfPanic leaves out what is above the panic: the frames that read the stack.
func stackOfPanic(stack string) string {
	if _, after, found := strings.Cut(stack, "\npanic("); found {
		if _, rest, found := strings.Cut(after, "\n\t"); found {
			if _, rest, found := strings.Cut(rest, "\n"); found {
				return strings.TrimSpace(rest)
			}
		}
	}
	return strings.TrimSpace(stack)
}

// Guard calls a handler and turns a panic into an error. The packages handler and
// hosttest call it; a handler need not.
func Guard(handler func(Event) error, event Event) (err error) {
	defer recovered(&err)
	return handler(event)
}

// GuardBatch calls a handler of batches and gives one error for each event, as [Guard]
// does for one.
func GuardBatch(handler func([]Event) []error, events []Event) (errs []error) {
	defer func() {
		var err error
		if value := recover(); value != nil {
			err = &PanicError{Value: value, Stack: stackOfPanic(string(debug.Stack()))}
		} else if len(errs) != len(events) {
			err = fmt.Errorf("the handler gave %d results for %d events", len(errs), len(events))
		}
		if err != nil {
			errs = make([]error, len(events))
			for i := range errs {
				errs[i] = err
			}
		}
	}()
	return handler(events)
}
