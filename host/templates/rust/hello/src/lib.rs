//! Counts the orders of each customer, and says hello at the first.

use event_host_sdk::{Event, Failure, Message, emit, handler, log, state};

#[derive(serde::Deserialize)]
struct Order {
    customer: Option<String>,
}

#[derive(serde::Serialize)]
struct Greeting {
    text: String,
}

#[handler]
fn handle(event: Event) -> Result<(), Failure> {
    let order: Order = event.json()?;
    let customer =
        order.customer.ok_or_else(|| Failure::reject("the order names no customer"))?;

    let key = format!("orders/{customer}");
    let orders = state::get::<u64>(&key)?.unwrap_or(0) + 1;
    state::set(&key, &orders)?;
    log::info!("order {orders} of {customer}");

    if orders == 1 {
        let greeting = Greeting { text: format!("Hello, {customer}!") };
        emit(Message::new("customer.greeted").json(&greeting)?.subject(customer))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use event_host_sdk::testing;

    use super::*;

    fn placed(data: &str) -> Event {
        Event::for_test(Message::new("order.placed").data(data, "application/json"))
    }

    #[test]
    fn the_first_order_is_greeted() {
        handle(placed(r#"{"id": 7, "customer": "Ada"}"#)).unwrap();
        let emitted = testing::emitted();
        assert_eq!(emitted.len(), 1);
        assert_eq!(emitted[0].event_type(), "customer.greeted");
        assert_eq!(emitted[0].subject(), Some("Ada"));
        assert_eq!(emitted[0].text().unwrap(), r#"{"text":"Hello, Ada!"}"#);
        assert_eq!(state::get("orders/Ada").unwrap(), Some(1));
    }

    #[test]
    fn later_orders_are_only_counted() {
        state::set("orders/Ada", &4).unwrap();
        handle(placed(r#"{"id": 7, "customer": "Ada"}"#)).unwrap();
        assert!(testing::emitted().is_empty());
        assert_eq!(state::get("orders/Ada").unwrap(), Some(5));
    }

    #[test]
    fn an_order_of_nobody_is_rejected() {
        let failure = handle(placed(r#"{"id": 8}"#)).unwrap_err();
        assert!(!failure.is_retry());
        assert_eq!(failure.reason(), "the order names no customer");
    }
}
