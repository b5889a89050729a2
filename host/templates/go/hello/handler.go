// Counts the orders of each customer, and says hello at the first.
package main

import (
	eh "event-host.dev/sdk"
	"event-host.dev/sdk/handler"
)

type order struct {
	Customer string `json:"customer"`
}

type greeting struct {
	Text string `json:"text"`
}

func handle(event eh.Event) error {
	var placed order
	if err := event.JSON(&placed); err != nil {
		return err
	}
	if placed.Customer == "" {
		return eh.Reject("the order names no customer")
	}

	key := "orders/" + placed.Customer
	orders, err := eh.State.Int(key)
	if err != nil {
		return err
	}
	orders++
	if err := eh.State.Set(key, orders); err != nil {
		return err
	}
	eh.Log.Info("order %d of %s", orders, placed.Customer)

	if orders > 1 {
		return nil
	}
	return eh.Emit("customer.greeted", greeting{"Hello, " + placed.Customer + "!"}, eh.Subject(placed.Customer))
}

func init() { handler.Handle(handle) }

func main() {}
