//! What the conformance tests ask of a handler, of one event.

use std::time::Duration;

use event_host_sdk::{Event, Failure, Message, context, emit, log, state};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Order {
    id: i64,
    name: String,
    #[serde(default)]
    cmd: String,
}

#[derive(Serialize)]
struct Done {
    id: i64,
    name: String,
    count: i64,
    attempt: u32,
    bytes: usize,
    group: String,
    tenant: Option<String>,
    left: bool,
    replay: bool,
    late: bool,
}

/// Handles one event.
///
/// # Errors
/// As the event's command asks for.
pub fn handle(event: &Event) -> Result<(), Failure> {
    let order: Order = event.json()?;
    log::info!("order {} of {}", order.id, context::group());
    let attempt = event.attempt();
    match order.cmd.as_str() {
        "retry" if attempt < 3 => {
            return Err(
                Failure::retry(format!("not yet: {attempt}")).after(Duration::from_millis(50))
            );
        }
        "never" => return Err(Failure::retry("never").after(Duration::from_millis(50))),
        "reject" => return Err(Failure::reject(format!("no: {}", order.name))),
        "error" => return Err(std::io::Error::other("an ordinary error").into()),
        "boom" => panic!("about to fall"),
        "print" => println!("printed"),
        "invalid" => emit(Message::new("order.invalid").subject(""))?,
        "denied" => emit(Message::new("secret.spilled"))?,
        "empty" => emit(Message::new("order.empty"))?,
        "bytes" => keep_bytes()?,
        "list" => keep_list()?,
        "late" if attempt < 2 => {
            state::set("count", &-1)?;
            emit(Message::new("order.never"))?;
            return Err(Failure::retry("too early"));
        }
        _ => {}
    }

    let count = state::get::<i64>("count")?.unwrap_or(0) + 1;
    state::set("count", &count)?;
    let left = context::remaining();
    let answer = Done {
        id: order.id,
        name: order.name,
        count,
        attempt,
        bytes: event.data().len(),
        group: context::group(),
        tenant: context::tenant(),
        left: !left.is_zero() && left <= Duration::from_secs(10),
        replay: context::is_replay(),
        late: context::is_late(),
    };
    let done = Message::new("order.done").subject(order.id.to_string()).json(&answer)?;
    let done =
        event.extensions().fold(done, |done, (name, value)| done.extension(name, value.clone()));
    emit(done)?;
    Ok(())
}

fn keep_bytes() -> Result<(), Failure> {
    state::set_bytes("raw", &[0, 255])?;
    same(&state::get_bytes("raw")?, &Some(vec![0, 255]))?;
    same(&state::keys("ra", 10)?, &vec!["raw".to_owned()])?;
    state::delete("raw")?;
    same(&state::get_bytes("raw")?, &None)
}

fn keep_list() -> Result<(), Failure> {
    let wanted = json!([1, "ü", null, { "a": true }]);
    same(&state::get::<Value>("list")?.unwrap_or_else(|| wanted.clone()), &wanted)?;
    state::set("list", &wanted)?;
    same(&state::get("list")?, &Some(wanted))
}

fn same<T: PartialEq + std::fmt::Debug>(value: &T, wanted: &T) -> Result<(), Failure> {
    if value == wanted {
        Ok(())
    } else {
        Err(Failure::reject(format!("{value:?} is not {wanted:?}")))
    }
}
