//! `host new`: a handler from a template, to the first event that it handles.
//!
//! What needs the tools of a language is tried by `cargo xtask sdks`.

use std::fs;

use serde_json::{Value, json};
use tests::{Handler, Rig, Settings, Store};

tests::on_both_stores! {
    a_new_handler_is_built_checked_and_handles_its_event,
}

fn nothing() -> Settings {
    Settings::of(Vec::<Handler>::new())
}

fn a_new_handler_is_built_checked_and_handles_its_event(store: Store) {
    let rig = Rig::on(store, &nothing());
    for template in ["hello", "batch"] {
        let said = rig.host(["new", template, "--lang", "wat", "--template", template]).ok();
        // What it says next is what the README says.
        let readme = fs::read_to_string(rig.path(template).join("README.md")).expect("a README");
        let commands: Vec<_> = said.lines().filter_map(|line| line.strip_prefix("  ")).collect();
        assert_eq!(commands.len(), 2, "{said}");
        for command in commands {
            assert!(readme.contains(&format!("\n$ {command}\n")), "{readme}");
            let words: Vec<_> = command.split(' ').collect();
            assert_eq!(words[0], "host");
            let _ = rig.host(&words[1..]).ok();
        }
    }
    let _ = rig.host(["check"]).ok();
    let _ = rig.host(["publish", "--file", "hello/event.json"]).ok();
    rig.drain();
    assert_eq!(rig.data_of("customer.greeted"), [json!({ "text": "Hello, Ada!" })]);
    assert_eq!(rig.state("hello", "orders/Ada"), 1);
    assert_eq!(rig.state("batch", "orders"), 1);
}

#[test]
fn a_new_handler_is_added_to_a_file_that_others_are_in() {
    let rig = Rig::new(&nothing());
    let before = "# Ours.\n[handlers.old]\ncomponent = \"deployed\" # later\nsubscribe = [\"a\"]\n";
    fs::create_dir(rig.path("shop")).expect("a folder");
    rig.write("shop/shop.toml", before);
    let arguments = ["new", "orders", "--lang", "go", "--into", "shop/shop.toml"];
    let said = rig.host(arguments).ok();
    assert!(said.starts_with("shop/orders: the template hello in Go;"), "{said}");
    assert!(said.contains("one event, in shop:"), "{said}");
    let after = fs::read_to_string(rig.path("shop/shop.toml")).expect("settings");
    assert!(after.starts_with(&format!("{before}\n[handlers.orders]\n")), "{after}");
    assert!(rig.path("shop/orders/event-host/go.mod").is_file());

    // Where there is no file, one is made, and the folder for it.
    let _ = rig.host(["-c", "new/handlers.toml", "new", "a", "--lang", "wat"]).ok();
    let made = fs::read_to_string(rig.path("new/handlers.toml")).expect("settings");
    assert!(made.starts_with("database = \"sqlite:host.db\"\n\n[handlers.a]\n"), "{made}");
}

#[test]
fn a_new_handler_that_cannot_be_made_is_refused_with_what_would_be_right() {
    let rig = Rig::new(&nothing());
    for (arguments, words) in [
        (&["new", "a"][..], "Say --lang and one of rust, js, ts, python, go, c, cpp, zig, wat"),
        (&["new"], "the following required arguments were not provided"),
        (&["new", "a", "--lang", "pyhton"], "is python meant?"),
        (&["new", "a", "--lang", "go", "--template", "bacth"], "is batch meant?"),
        (&["new", "a", "--lang", "wat", "--template", "http"], "WAT has no template http: by hand"),
        (&["new", "a/b", "--lang", "wat"], "`a/b` is not a name"),
        (&["new", "a.b", "--lang", "rust"], "the name a.b has a dot"),
        (&["new", "a", "--list"], "cannot be used with"),
    ] {
        let complaint = rig.host(arguments).failed(2);
        assert!(complaint.contains(words), "{arguments:?}: {complaint}");
    }
    let before = fs::read(rig.path("handlers.toml")).expect("settings");
    fs::create_dir(rig.path("a")).expect("a folder");
    rig.write("a/mine", "mine");
    let complaint = rig.host(["new", "a", "--lang", "wat"]).failed(1);
    assert!(complaint.contains("a is there already, and is not empty"), "{complaint}");
    assert_eq!(fs::read(rig.path("handlers.toml")).expect("settings"), before);
    assert_eq!(fs::read(rig.path("a/mine")).expect("a file"), b"mine");

    let _ = rig.host(["new", "b", "--lang", "wat"]).ok();
    let complaint = rig.host(["new", "b", "--lang", "c"]).failed(1);
    assert!(complaint.contains("b is there already"), "{complaint}");
    fs::remove_dir_all(rig.path("b")).expect("it can be removed");
    let complaint = rig.host(["new", "b", "--lang", "c"]).failed(1);
    assert!(complaint.contains("handlers.toml: there is a handler b already"), "{complaint}");
    assert!(!rig.path("b").exists());
}

#[test]
fn the_list_has_every_language_its_templates_and_what_is_missing() {
    let rig = Rig::new(&nothing());
    let list = rig.json(&["new", "--list"]);
    let languages = list.as_array().expect("a list");
    let names: Vec<_> = languages.iter().map(|language| language["name"].clone()).collect();
    assert_eq!(names, ["rust", "js", "ts", "python", "go", "c", "cpp", "zig", "wat"]);
    for language in languages {
        let all = language["templates"].as_array().map_or(0, Vec::len)
            + language["no_templates"].as_object().map_or(0, serde_json::Map::len);
        assert_eq!(all, 4, "{language}");
    }
    let wat: &Value = &languages[8];
    assert_eq!(wat["missing_tools"], json!([]));
    let table = rig.host(["new", "--list"]).ok();
    assert!(table.contains("none are needed") && table.contains("host build --doctor"), "{table}");
    // Nothing is made, and no tool is installed.
    assert!(!rig.path("host.db").exists());
}
