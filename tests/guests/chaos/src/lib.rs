//! Does on command what bad guests do, and a few things that good ones do.
//!
//! The commands are in `../README.md`; the event's data holds one, or a list
//! that is carried out in order.

mod bad;
mod own;
mod reach;

use std::time::Duration;

use event_host_sdk::{Event, ExtensionValue, Failure, Message, context, emit, handler, log, state};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use wasi_calls::Stream;

#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
// Those without fields have braces, because serde refuses unknown fields only then.
enum Command {
    Trap {},
    Panic {
        text: String,
    },
    Spin {},
    Recurse {},
    Allocate {
        mebibytes: Option<usize>,
    },
    FloodLogs {},
    HugeLog {
        bytes: usize,
    },
    FloodEmits {},
    HugeEmit {
        bytes: usize,
    },
    FloodState {},
    HugeState {
        bytes: usize,
    },
    LeakResources {
        count: u64,
    },
    OwnResources {
        count: u64,
        keep: bool,
    },
    Hoard {
        part: reach::Part,
        count: u64,
        bytes: usize,
    },
    Exit {
        successfully: bool,
    },
    AbortIfEnv {
        name: String,
    },
    Sleep {
        ms: u64,
    },
    Print {
        text: String,
        to: Option<Output>,
    },
    Succeed {},
    Reject {
        text: Option<String>,
        bytes: Option<usize>,
    },
    #[serde(rename_all = "kebab-case")]
    Retry {
        text: Option<String>,
        bytes: Option<usize>,
        after_ms: Option<u64>,
    },
    FailUntilAttempt {
        attempt: u32,
    },
    Count {
        key: String,
    },
    Forget {
        key: String,
    },
    Emit {
        r#type: String,
        count: Option<u32>,
        data: Option<Value>,
        deliver_after: Option<String>,
    },
    Log {
        level: Option<Level>,
        line: String,
    },
    Report {
        r#type: String,
    },
    Request(reach::Request),
    HoldRequests {
        url: String,
        count: u32,
        ms: u64,
    },
    Config {
        key: String,
        r#type: String,
    },
    Clocks {
        r#type: String,
    },
    WaysOut {
        r#type: String,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Output {
    Stdout,
    Stderr,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Level {
    Trace,
    Debug,
    Info,
    Warn,
    Error,
}

#[handler]
fn chaos(event: Event) -> Result<(), Failure> {
    let commands: Vec<Command> = if event.text()?.trim_start().starts_with('[') {
        event.json()?
    } else {
        vec![event.json()?]
    };
    commands.into_iter().try_for_each(|command| obey(command, &event))
}

fn obey(command: Command, event: &Event) -> Result<(), Failure> {
    match command {
        Command::Trap {} => bad::trap(),
        Command::Panic { text } => panic!("{text}"),
        Command::Spin {} => bad::spin(),
        Command::Recurse {} => bad::recurse(),
        Command::Allocate { mebibytes } => bad::allocate(mebibytes.unwrap_or(usize::MAX)),
        Command::FloodLogs {} => bad::flood_logs(),
        Command::HugeLog { bytes } => log::write(log::Level::Info, &"x".repeat(bytes)),
        Command::FloodEmits {} => bad::flood_emits()?,
        Command::HugeEmit { bytes } => {
            emit(Message::new("huge").data(vec![b'x'; bytes], "text/plain"))?;
        }
        Command::FloodState {} => bad::flood_state()?,
        Command::HugeState { bytes } => state::set_bytes("huge", &vec![b'x'; bytes])?,
        Command::LeakResources { count } => wasi_calls::leak_resources(count),
        Command::OwnResources { count, keep } => own::make(count, keep),
        Command::Hoard { part, count, bytes } => {
            wasi_calls::hoard::hoard(part.into(), count, bytes).map_err(Failure::reject)?;
        }
        Command::Exit { successfully } => wasi_calls::exit(successfully),
        Command::AbortIfEnv { name } => {
            if wasi_calls::variable(&name).is_some() {
                bad::trap();
            }
        }
        Command::Sleep { ms } => wasi_calls::sleep(Duration::from_millis(ms)),
        Command::Print { text, to } => {
            let stream = match to {
                None | Some(Output::Stdout) => Stream::Stdout,
                Some(Output::Stderr) => Stream::Stderr,
            };
            wasi_calls::print(stream, &text).map_err(Failure::of)?;
        }
        Command::Succeed {} => {}
        Command::Reject { text, bytes } => return Err(Failure::reject(reason(text, bytes))),
        Command::Retry { text, bytes, after_ms } => {
            let failure = Failure::retry(reason(text, bytes));
            return Err(match after_ms {
                Some(delay) => failure.after(Duration::from_millis(delay)),
                None => failure,
            });
        }
        Command::FailUntilAttempt { attempt } => {
            if event.attempt() < attempt {
                return Err(Failure::retry(format!("attempt {} fails", event.attempt())));
            }
        }
        Command::Count { key } => {
            let count: u64 = state::get(&key)?.unwrap_or(0);
            state::set(&key, &(count + 1))?;
        }
        Command::Forget { key } => state::delete(&key)?,
        Command::Emit { r#type, count, data, deliver_after } => {
            for _ in 0..count.unwrap_or(1) {
                let message = Message::new(&r#type).json(&data)?;
                emit(match &deliver_after {
                    Some(time) => message.deliver_after(time),
                    None => message,
                })?;
            }
        }
        Command::Log { level, line } => {
            let level = match level {
                Some(Level::Trace) => log::Level::Trace,
                Some(Level::Debug) => log::Level::Debug,
                None | Some(Level::Info) => log::Level::Info,
                Some(Level::Warn) => log::Level::Warn,
                Some(Level::Error) => log::Level::Error,
            };
            log::write(level, &line);
        }
        Command::Report { r#type } => emit(Message::new(r#type).json(&report(event))?)?,
        Command::Request(request) => reach::request(request)?,
        Command::HoldRequests { url, count, ms } => {
            wasi_calls::http::hold(&url, count, Duration::from_millis(ms)).map_err(Failure::of)?;
        }
        Command::Config { key, r#type } => {
            let (value, all) = wasi_calls::ways_out::config(&key).map_err(Failure::of)?;
            emit(Message::new(r#type).json(&json!({ "value": value, "all": all }))?)?;
        }
        Command::Clocks { r#type } => emit(Message::new(r#type).json(&reach::clocks())?)?,
        Command::WaysOut { r#type } => {
            let ways: Map<String, Value> = wasi_calls::ways_out::try_all()
                .into_iter()
                .map(|(way, found)| (way.to_owned(), json!(found)))
                .collect();
            emit(Message::new(r#type).json(&ways)?)?;
        }
    }
    Ok(())
}

/// The text as it stands, or one of so many bytes.
fn reason(text: Option<String>, bytes: Option<usize>) -> String {
    text.unwrap_or_else(|| "x".repeat(bytes.unwrap_or(0)))
}

/// What this call sees, so that a test can compare it with what was published.
fn report(event: &Event) -> Value {
    let extensions: Map<String, Value> = event
        .extensions()
        .map(|(name, value)| {
            let value = match value {
                ExtensionValue::Boolean(value) => json!(value),
                ExtensionValue::Integer(value) => json!(value),
                ExtensionValue::Text(value) => json!(value),
            };
            (name.to_owned(), value)
        })
        .collect();
    json!({
        "id": event.id(),
        "source": event.source(),
        "type": event.event_type(),
        "subject": event.subject(),
        "time": event.time(),
        "datacontenttype": event.datacontenttype(),
        "dataschema": event.dataschema(),
        "partitionkey": event.partitionkey(),
        "extensions": extensions,
        "position": event.position(),
        "attempt": event.attempt(),
        "group": context::group(),
        "tenant": context::tenant(),
        "remaining-ms": context::remaining().as_millis(),
        "is-replay": context::is_replay(),
        "is-late": context::is_late(),
    })
}
