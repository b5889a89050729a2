//! Handlers of other makers and of other times: the contract alone decides.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tests::{Handler, Rig, Settings, Store, event};
use wit_parser::Resolve;

/// The tables of the ABI, as the generator of the bindings makes them.
#[path = "../../guest-sdk/bindings-generator/src/abi.rs"]
mod abi;

tests::on_both_stores! {
    a_handler_that_was_made_without_an_sdk_runs,
    a_component_that_was_built_once_loads_on_every_later_host,
}

/// What every handler of the conformance tests makes of an order.
fn orders() -> [Value; 4] {
    [
        event("order.placed", "plain", json!({ "id": 1, "name": "Jürgen" })),
        event("order.placed", "retry", json!({ "id": 2, "name": "again", "cmd": "retry" })),
        event("order.placed", "reject", json!({ "id": 3, "name": "Käse", "cmd": "reject" })),
        event("order.placed", "last", json!({ "id": 4, "name": "漢字" })),
    ]
}

/// A group for each component, named as its file.
fn handled_by(store: Store, components: &[PathBuf]) {
    let names: Vec<String> = components
        .iter()
        .map(|file| file.file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    let handlers = names.iter().zip(components).map(|(name, file)| {
        Handler::of_file(name, &file.to_string_lossy(), &["order.placed"]).attempts(3)
    });
    let rig = Rig::on(store, &Settings::of(handlers));
    rig.publish(&orders());
    let _ = rig.drain();
    for name in &names {
        assert_eq!(rig.state(name, "count"), 3, "{name}: {:?}", rig.dead_letters());
        let data = rig.as_text("data");
        let done = rig.texts(&format!(
            "SELECT {data} FROM events WHERE type = 'order.done' AND source = '/groups/{name}'
             ORDER BY position"
        ));
        let done: Vec<Value> =
            done.iter().map(|text| serde_json::from_str(text).expect("JSON")).collect();
        let short = |event: &Value| json!([event["name"], event["count"], event["attempt"]]);
        // By default events come in the log's order: the second holds up those behind it.
        let wanted = [json!(["Jürgen", 1, 1]), json!(["again", 2, 3]), json!(["漢字", 3, 1])];
        assert_eq!(done.iter().map(short).collect::<Vec<_>>(), wanted, "{name}");
        let letters = rig.dead_letters();
        let letters: Vec<&Value> =
            letters.iter().filter(|letter| letter["group"] == name.as_str()).collect();
        assert_eq!(letters.len(), 1, "{name}: {letters:?}");
        assert!(letters[0].to_string().contains("no: Käse"), "{name}: {letters:?}");
    }
}

fn a_handler_that_was_made_without_an_sdk_runs(store: Store) {
    handled_by(store, &[tests::guest_file("stranger")]);
}

fn a_component_that_was_built_once_loads_on_every_later_host(store: Store) {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("kept");
    let mut versions = 0;
    for version in fs::read_dir(kept).expect("a folder") {
        let version = version.expect("an entry").path();
        if !version.is_dir() {
            continue;
        }
        let files = fs::read_dir(&version).expect("a folder");
        let mut components: Vec<_> = files.map(|file| file.expect("an entry").path()).collect();
        components.sort();
        assert!(components.len() >= 5, "{}: {components:?}", version.display());
        handled_by(store, &components);
        versions += 1;
    }
    assert!(versions >= 1, "nothing is kept");
}

#[test]
fn the_tables_of_the_abi_are_those_of_the_contract() {
    const MARK: &str = "<!-- From here on the page is generated from the contract. -->\n\n";
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder above");
    let page = fs::read_to_string(root.join("docs/languages/others.md")).expect("text");
    let (_, tables) = page.split_once(MARK).expect("the mark");
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_path(root.join("wit")).expect("the contract");
    let worlds = ["event-handler", "batch-event-handler"]
        .map(|world| resolve.select_world(&[package], Some(world)).expect("a world"));
    let wanted = abi::tables(&resolve, worlds).expect("tables");
    for (line, (found, wanted)) in tables.lines().zip(wanted.lines()).enumerate() {
        assert_eq!(
            found,
            wanted,
            "line {} of the tables; see guest-sdk/bindings-generator",
            line + 1
        );
    }
    assert_eq!(tables.len(), wanted.len(), "see guest-sdk/bindings-generator");
}
