//! Who may import whom: the rooms of the host, held against its sources. A room that
//! imports only what is below it can be read, tested and compiled without what is above.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The rooms below the application, and which of the others each may name. Besides, each
/// may name itself and the modules of `core`.
const MAY_NAME: [(&str, &[&str]); 6] = [
    ("core", &[]),
    ("store", &[]),
    ("sandbox", &[]),
    ("leadership", &["store"]),
    ("delivery", &["store"]),
    ("supervisor", &["delivery", "leadership", "store"]),
];

/// The databases that have a store. One store knows nothing of another, and the rooms above
/// know only the traits.
const DATABASES: [&str; 2] = ["postgres", "sqlite"];

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder above").join("host/src")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A file of a module, and how deep in the crate the module is: 1 below its root.
struct Source {
    path: PathBuf,
    depth: usize,
    text: String,
}

/// Every file of a module of the root.
fn module(name: &str) -> Vec<Source> {
    fn below(path: PathBuf, depth: usize, found: &mut Vec<Source>) {
        for entry in fs::read_dir(path).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                below(path, depth + 1, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let depth = depth + usize::from(!path.ends_with("mod.rs"));
                let text = read(&path);
                found.push(Source { path, depth, text });
            }
        }
    }
    let mut found = Vec::new();
    let file = sources().join(format!("{name}.rs"));
    if file.exists() {
        let text = read(&file);
        found.push(Source { path: file, depth: 1, text });
    }
    if sources().join(name).exists() {
        below(sources().join(name), 1, &mut found);
    }
    assert!(!found.is_empty(), "there is no module {name}");
    found
}

/// The modules that a file declares.
fn declared(text: &str) -> BTreeSet<&str> {
    let names = text.lines().filter_map(|line| {
        let line = line.trim_start_matches("pub(crate) ").trim_start_matches("pub ");
        line.strip_prefix("mod ")?.strip_suffix(';')
    });
    names.collect()
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The name at the beginning of a text; empty where there is none.
fn name(text: &str) -> &str {
    &text[..text.find(|c| !is_name(c)).unwrap_or(text.len())]
}

/// The names that follow `crate::`, or as many `super::` as lead to the root of the crate.
/// Comments count: what they link to is named too.
fn names_at_the_root(source: &str, depth: usize) -> BTreeSet<&str> {
    names_after(source, &["crate::", &"super::".repeat(depth)])
}

/// The names that follow one of these beginnings of a path.
fn names_after<'a>(source: &'a str, prefixes: &[&str]) -> BTreeSet<&'a str> {
    let mut named = BTreeSet::new();
    for prefix in prefixes.iter().filter(|prefix| !prefix.is_empty()) {
        for (at, _) in source.match_indices(prefix) {
            let after = &source[at + prefix.len()..];
            if source[..at].ends_with(is_name) || after.starts_with("super::") {
                continue;
            }
            match after.strip_prefix('{') {
                None => named.extend([name(after)]),
                // Whatever is in a list counts, however deep.
                Some(list) => named.extend(
                    list[..list.find(';').unwrap_or(list.len())]
                        .split(|c| !is_name(c))
                        .filter(|name| !name.is_empty()),
                ),
            }
        }
    }
    named
}

/// Whether a text uses a crate, or one whose name begins like that.
fn uses(source: &str, krate: &str) -> bool {
    let code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.flat_map(|line| line.match_indices(krate).map(move |(at, _)| (line, at))).any(
        |(line, at)| {
            let rest = &line[at..];
            !line[..at].ends_with(|c| is_name(c) || c == ':' || c == '.')
                && rest[name(rest).len()..].starts_with("::")
        },
    )
}

#[test]
fn a_room_names_only_the_rooms_below_it() {
    let root = read(&sources().join("lib.rs"));
    let core = read(&sources().join("core/mod.rs"));
    let (modules, core) = (declared(&root), declared(&core));
    assert!(core.contains("event") && modules.contains("store"), "{core:?} {modules:?}");
    let mut wrong = Vec::new();
    for (room, allowed) in MAY_NAME {
        for Source { path, depth, text } in module(room) {
            let named = names_at_the_root(&text, depth);
            for other in named.intersection(&modules) {
                let may = *other == room || core.contains(other) || allowed.contains(other);
                if !may {
                    wrong.push(format!("{}: {room} names {other}", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_module_names_the_command_line() {
    let root = read(&sources().join("lib.rs"));
    let mut wrong = Vec::new();
    for name in declared(&root).into_iter().filter(|name| *name != "cli") {
        for Source { path, depth, text } in module(name) {
            if names_at_the_root(&text, depth).contains("cli") {
                wrong.push(format!("{}: {name} names cli", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn only_the_store_knows_sqlx_and_only_the_sandbox_wasmtime() {
    let mut wrong = Vec::new();
    for (room, _) in MAY_NAME {
        for (krate, owner) in [("sqlx", "store"), ("wasmtime", "sandbox")] {
            for Source { path, text, .. } in module(room) {
                if room != owner && uses(&text, krate) {
                    wrong.push(format!("{}: {room} uses {krate}", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_store_knows_another_and_no_room_above_knows_one_by_its_database() {
    let mut wrong = Vec::new();
    for (room, _) in MAY_NAME {
        for Source { path, text, .. } in module(room) {
            let inside = path.strip_prefix(sources()).expect("a source");
            for database in DATABASES {
                let path_into = format!("{database}::");
                let is_own = inside.starts_with(Path::new("store").join(database));
                // The room of the stores declares them and no more.
                let mut found = text.match_indices(&path_into);
                if !is_own && found.any(|(at, _)| !text[..at].ends_with(is_name)) {
                    wrong.push(format!("{}: names the store of {database}", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The code of a file, without its comments and its unit tests.
fn code(source: &str) -> String {
    let end = source.find("#[cfg(test)]\nmod tests {").unwrap_or(source.len());
    let code = source[..end].lines().filter(|line| !line.trim_start().starts_with("//"));
    code.map(|line| format!("{line}\n")).collect()
}

/// The modules of a room, each with the others that it imports.
fn imports(room: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for Source { path, depth, text } in module(room) {
        let inside = path.strip_prefix(sources().join(room)).expect("a file of the room");
        let mut parts = inside.iter().map(|part| part.to_string_lossy().replace(".rs", ""));
        let first = parts.next().expect("a name");
        if first == "mod" || first == "tests" || parts.any(|part| part == "tests") {
            continue;
        }
        let (code, to_room) = (code(&text), format!("crate::{room}::"));
        let named = names_after(&code, &[&to_room, &"super::".repeat(depth - 1)]);
        imports.entry(first).or_default().extend(named.into_iter().map(str::to_owned));
    }
    imports
}

/// Those of the modules that import one another in a circle, and those that import such.
fn in_circles(mut imports: BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    loop {
        let left: BTreeSet<String> = imports.keys().cloned().collect();
        imports.retain(|module, named| named.iter().any(|n| n != module && left.contains(n)));
        if imports.len() == left.len() {
            return left.into_iter().collect();
        }
    }
}

#[test]
fn the_modules_of_a_room_import_one_way() {
    for room in ["core", "sandbox", "leadership", "delivery", "supervisor"] {
        let imports = imports(room);
        assert!(imports.len() > 1, "{room}: {imports:?}");
        assert_eq!(in_circles(imports), [""; 0], "{room}: circles, and what is above them");
    }
    let circle = [("a", "b"), ("b", "c"), ("c", "b"), ("d", "d")];
    let circle = circle.map(|(module, named)| (module.to_owned(), [named.to_owned()].into()));
    assert_eq!(in_circles(circle.into()), ["a", "b", "c"]);
}

#[test]
fn an_import_is_found_however_it_is_written() {
    let named = |source, depth| names_at_the_root(source, depth).into_iter().collect::<Vec<_>>();
    assert_eq!(named("use crate::delivery::group;", 1), ["delivery"]);
    assert_eq!(
        named("use crate::{event, store::{Store, self}};", 1),
        ["Store", "event", "self", "store"]
    );
    assert_eq!(named("/// As [`Handler`](crate::handler::Handler).", 3), ["handler"]);
    assert_eq!(named("fn f(x: super::super::store::Fetch) {}", 2), ["store"]);
    assert_eq!(named("use super::store;", 2), [""; 0], "it is one of its own room");
    assert!(uses("use sqlx::Row;", "sqlx") && uses("x(wasmtime_wasi::a())", "wasmtime"));
    assert!(!uses("// sqlx::Row", "sqlx") && !uses("my_sqlx::a()", "sqlx"));
}
