// A handler of single events.
package main

import (
	"conformance/orders"

	"event-host.dev/sdk/handler"
)

func init() { handler.Handle(orders.Handle) }

func main() {}
