// Package sdk is for writing event-host handlers in Go.
//
// A handler is a plain function. The host calls it with one event at a time;
// whatever it emits or writes to its state is kept when, and only when, it returns
// nil, in the same transaction that marks the event as done.
//
//	package main
//
//	import (
//		eh "event-host.dev/sdk"
//		"event-host.dev/sdk/handler"
//	)
//
//	type Order struct {
//		ID    int     `json:"id"`
//		Total float64 `json:"total"`
//	}
//
//	func review(event eh.Event) error {
//		var order Order
//		if err := event.JSON(&order); err != nil {
//			return err
//		}
//		if order.Total <= 1000 {
//			return nil
//		}
//		return eh.Emit("order.review", order, eh.Subject(fmt.Sprint(order.ID)))
//	}
//
//	func init() { handler.Handle(review) }
//
//	func main() {}
//
// For a handler of batches see the package batch, and for unit tests the package
// hosttest, which is a host in memory.
//
// # Failing
//
//	returned                       what the host does
//	nil                            the event is done
//	Retry(...)                     calls again later; after the last attempt the event becomes a dead letter
//	Reject(...)                    makes the event a dead letter at once
//	an *InvalidEvent, of JSON etc. like Reject: the event will not get better
//	any other error                like Retry, with the error's text as the reason
//	a panic                        like Retry, with the panic and its stack as the reason
//
// Errors may be wrapped with %w: what is inside decides. What the Go runtime itself
// ends, such as a deadlock, and os.Exit end the instance and count like Retry.
package sdk
