//! Counts orders, with one write to the state and one event for all orders of a call.

use event_host_sdk::{Event, Failure, Message, batch_handler, emit, log, state};

#[derive(serde::Deserialize)]
struct Order {
    customer: Option<String>,
}

#[derive(serde::Serialize)]
struct Counted {
    orders: usize,
    total: u64,
}

/// Gives a result for each event. If one is a failure, nothing of the call counts, and the
/// host calls again with each event by itself.
#[batch_handler]
fn handle(events: Vec<Event>) -> Vec<Result<(), Failure>> {
    let results: Vec<_> = events.iter().map(check).collect();
    if results.iter().all(Result::is_ok)
        && let Err(failure) = count(events.len())
    {
        return vec![Err(failure); events.len()];
    }
    results
}

fn check(event: &Event) -> Result<(), Failure> {
    match event.json::<Order>()?.customer {
        Some(_) => Ok(()),
        None => Err(Failure::reject("the order names no customer")),
    }
}

fn count(orders: usize) -> Result<(), Failure> {
    let total = state::get::<u64>("orders")?.unwrap_or(0) + orders as u64;
    state::set("orders", &total)?;
    log::info!("{orders} orders, {total} in all");
    emit(Message::new("orders.counted").json(&Counted { orders, total })?)?;
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
    fn orders_are_counted_together() {
        state::set("orders", &4).unwrap();
        let order = || placed(r#"{"id": 7, "customer": "Ada"}"#);
        assert_eq!(handle(vec![order(), order()]), [Ok(()), Ok(())]);
        assert_eq!(state::get("orders").unwrap(), Some(6));
        let emitted = testing::emitted();
        assert_eq!(emitted.len(), 1);
        assert_eq!(emitted[0].text().unwrap(), r#"{"orders":2,"total":6}"#);
    }

    #[test]
    fn an_order_of_nobody_is_rejected_and_nothing_is_counted() {
        let results = handle(vec![placed(r#"{"customer": "Ada"}"#), placed(r#"{"id": 8}"#)]);
        assert_eq!(results[0], Ok(()));
        assert_eq!(results[1], Err(Failure::reject("the order names no customer")));
        assert_eq!(state::get::<u64>("orders").unwrap(), None);
        assert!(testing::emitted().is_empty());
    }
}
