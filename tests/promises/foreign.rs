//! Words of handlers, publishers, components and other logins, on their way to whoever
//! looks: a terminal obeys none of them, and none passes for a word of the host's.

use serde_json::{Value, json};
use tests::{Client, Handler, PATIENCE, Rig, Settings, Store, event, wait_until, with};

tests::on_both_stores! {
    no_foreign_word_commands_a_terminal_or_passes_for_the_hosts,
}

/// A title for the terminal's window, colours in seven and in eight bits, a way back to
/// the line's beginning, a text that is read from right to left, one that is not seen, an
/// end of a line for a reader of Unicode, and then what looks like lines of the host.
const WORDS: &str = "\u{1b}]0;title\u{7}\u{9b}31mred\u{7f}\r\u{8}\u{202e}elbisreverof\u{2066}\u{200b}\u{feff}\u{2028}\u{e0041}end\nfailure         forged\n2026-01-01T00:00:00.000000Z  WARN forged\nerror: forged\n";

/// The same without what the rules for attributes of events refuse.
const ATTRIBUTE: &str = "a\u{202e}b\u{2066}c\u{200b}d\u{feff}e\u{2028}f";

/// What nothing that is shown may have: controls, and what reorders or hides.
fn is_harmful(c: char) -> bool {
    let hides = matches!(c,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{61c}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}');
    hides || (c.is_control() && c != '\n' && c != '\t')
}

#[track_caller]
fn is_clean(what: &str, text: &str) {
    let harmful = text.chars().find(|c| is_harmful(*c));
    assert_eq!(harmful, None, "{what}: {text:?}");
    let forged =
        ["failure         forged", "error: forged", "2026-01-01T00:00:00.000000Z  WARN forged"];
    let forges = |line: &&str| forged.iter().any(|begin| line.starts_with(begin));
    assert_eq!(text.lines().find(forges), None, "{what}: {text}");
}

fn settings() -> Settings {
    Settings::of([
        Handler::new("chaos", "chaos", &["foreign"]).attempts(1),
        Handler::new("innocent", "tally", &["*"]),
    ])
}

fn role() -> String {
    format!("r\u{202e}\nerror: forged {}", std::process::id())
}

/// A transaction that holds the log up, of a session that calls itself something.
fn held_up(rig: &Rig) -> Option<Client> {
    if rig.database_is_a_file() {
        return None;
    }
    let mut holder = Client::new(rig);
    // PostgreSQL cleans this one itself; a role's name it does not.
    holder.execute(&format!("CREATE ROLE \"{}\" SUPERUSER", role()));
    holder.execute(&format!("SET SESSION AUTHORIZATION \"{}\"", role()));
    holder.execute("BEGIN");
    holder.execute("INSERT INTO events (type) VALUES ('held')");
    Some(holder)
}

fn no_foreign_word_commands_a_terminal_or_passes_for_the_hosts(store: Store) {
    let rig = Rig::on(store, &settings());
    let _ = rig.host(["migrate"]).ok();
    let foreign = [
        json!({ "do": "reject", "text": WORDS }),
        json!({ "do": "retry", "text": WORDS }),
        json!({ "do": "panic", "text": WORDS }),
        json!({ "do": "log", "line": WORDS }),
        json!({ "do": "print", "text": WORDS, "to": "stderr" }),
        json!({ "do": "emit", "type": ATTRIBUTE, "data": WORDS }),
        json!({ "do": "count", "key": WORDS }),
        json!({ "do": "request", "url": format!("http://a/{WORDS}"), "type": "answer" }),
        json!(WORDS),
    ];
    let of_id = |n: usize| format!("{n}-{ATTRIBUTE}");
    let events: Vec<Value> = (0..)
        .zip(&foreign)
        .map(|(n, data)| event("foreign", of_id(n), data.clone()))
        .map(|event| with(event, "subject", ATTRIBUTE))
        .collect();
    rig.publish(&events);
    let text = ["--datacontenttype", "text/plain", "--data", WORDS];
    let _ = rig.host(["publish", "--type", "foreign"].iter().chain(&text)).ok();

    for format in ["text", "json"] {
        let drained = rig.host(["run", "--drain", "--log", "trace", "--log-format", format]);
        assert_eq!(drained.code, Some(0), "{drained:?}");
        is_clean(format, &drained.stderr);
        if format == "text" {
            assert!(drained.stderr.contains("\u{fffd}"), "it is shown cleaned: {}", drained.stderr);
            let _ = rig.host(["dlq", "replay", "--group", "chaos", "--all"]).ok();
        }
    }
    assert!(rig.state("innocent", "count") >= foreign.len() as i64);

    let _ = rig.host(["groups", "pause", "chaos", "--reason", WORDS]).ok();
    let holder = held_up(&rig);
    if holder.is_some() {
        wait_until("the log is held up", PATIENCE, || {
            rig.host(["status"]).ok().contains("the log is held up")
        });
    }
    let letters = rig.dead_letters();
    assert!(letters.len() >= 4, "{letters:?}");
    let mut looks: Vec<Vec<String>> = [
        &["status"][..],
        &["groups", "list"],
        &["groups", "show", "chaos"],
        &["dlq", "list"],
        &["dlq", "replay", "--group", "chaos", "--all", "--dry-run"],
    ]
    .map(|look| look.iter().map(ToString::to_string).collect())
    .to_vec();
    for letter in &letters {
        let id = letter["id"].to_string();
        looks.push(vec!["dlq".to_owned(), "show".to_owned(), id.clone()]);
        looks.push(vec!["dlq".to_owned(), "reproduce".to_owned(), id]);
    }
    for look in looks {
        let what = look.join(" ");
        let said = rig.host(&look);
        is_clean(&what, &said.stdout);
        is_clean(&what, &said.stderr);
        let json = rig.host(look.iter().map(String::as_str).chain(["--json"]));
        is_clean(&what, &json.stdout);
        serde_json::from_str::<Value>(&json.stdout).expect("it is JSON");
    }
    // What was escaped is still what it was.
    let of_words = letters.iter().find(|letter| letter["event"]["data"]["do"] == "reject");
    let of_words = of_words.expect("the reject is a dead letter");
    assert_eq!(of_words["event"]["data"]["text"], WORDS);
    assert_eq!(of_words["event"]["subject"], ATTRIBUTE);
    let raw = rig.host(["dlq", "show", "--raw", &of_words["id"].to_string()]).ok();
    assert_eq!(serde_json::from_str::<Value>(&raw).expect("it is JSON")["text"], WORDS);

    // What the arguments say, and errors that quote them.
    for arguments in [
        &["groups", "show", WORDS][..],
        &["dlq", "list", "--group", WORDS],
        &["status", "--log", WORDS],
        &[WORDS],
        &["run", WORDS],
        &["deploy", "chaos", WORDS],
        &["publish", "--type", WORDS],
    ] {
        let said = rig.host(arguments);
        let harmful = said.stderr.chars().find(|c| is_harmful(*c));
        assert_eq!(harmful, None, "{arguments:?}: {:?}", said.stderr);
    }
    if let Some(mut holder) = holder {
        holder.execute("ROLLBACK");
        holder.execute("RESET SESSION AUTHORIZATION");
        holder.execute(&format!("DROP ROLE \"{}\"", role()));
    }
}

#[test]
fn a_components_own_names_do_not_command_a_terminal() {
    let rig = Rig::new(&settings());
    let names = [
        format!("(component (import \"{ATTRIBUTE}\" (func)))"),
        "(module (import \"a\\1b[31m\\u{202e}\" \"b\\u{9b}\\u{a}error: forged\" (func)))"
            .to_owned(),
        format!("\u{1b}[31m{WORDS}"),
        format!("(component \u{202e}{WORDS}"),
        "(module (func $\\u{202e} unreachable) (export \"\\1b[31m\" (func 0)))".to_owned(),
    ];
    rig.write("event.json", event("foreign", 1, json!({})).to_string());
    for text in names {
        rig.write("foreign.wasm", &text);
        for look in [
            &["invoke", "foreign.wasm", "--event", "event.json"][..],
            &["deploy", "other", "foreign.wasm"],
        ] {
            let said = rig.host(look);
            assert_eq!(said.code, Some(1), "{said:?}");
            is_clean(&text, &said.stderr);
            is_clean(&text, &said.stdout);
        }
    }
}
