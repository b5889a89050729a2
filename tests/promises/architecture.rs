//! Who may import whom. Cargo holds it between crates; here is held what the manifests may
//! say, and what cargo does not see: modules inside of a crate. What imports only what is
//! below it can be read, tested and compiled without what is above.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The crates below the application, and which of the others each may depend on.
const MAY_DEPEND_ON: [(&str, &[&str]); 11] = [
    ("core", &[]),
    ("metrics", &["core"]),
    ("store", &["core"]),
    ("store-sqlite", &["core", "store"]),
    ("store-postgres", &["core", "store"]),
    ("sandbox", &["core", "metrics"]),
    ("delivery", &["core", "metrics", "store"]),
    ("ingest", &["core", "metrics", "store"]),
    ("http", &["core", "ingest", "metrics", "store", "webhooks"]),
    ("webhooks", &["core"]),
    ("schedules", &["core", "store"]),
];

/// Packages that only these crates may depend on, by what their names begin with.
const ONLY_IN: [(&str, &[&str]); 8] = [
    ("sqlx", &["store-sqlite", "store-postgres"]),
    // Nobody talks to a database in another way.
    ("rusqlite", &[]),
    ("libsqlite3", &[]),
    ("tokio-postgres", &[]),
    ("postgres", &[]),
    ("diesel", &[]),
    ("wasmtime", &["sandbox"]),
    ("clap", &["", "sandbox"]),
];

/// The folder of a crate of the host; that of the program itself has no name.
fn folder(krate: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder above").join("host").join(krate)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What the crate depends on, its tests aside.
fn dependencies(krate: &str) -> BTreeSet<String> {
    let manifest = read(&folder(krate).join("Cargo.toml"));
    let mut table = "";
    let mut found = BTreeSet::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            table = line;
        } else if table.ends_with("dependencies]") && !table.contains("dev-") {
            let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
            if !name.is_empty() && !name.starts_with('#') {
                found.insert(name.to_owned());
            }
        }
    }
    assert!(found.len() > 1, "{krate}: {found:?}");
    found
}

#[test]
fn a_crate_depends_only_on_the_crates_below_it() {
    let known: BTreeSet<&str> = MAY_DEPEND_ON.into_iter().map(|(krate, _)| krate).collect();
    let folders = fs::read_dir(folder("")).expect("a folder").map(|entry| entry.expect("an entry"));
    let crates: BTreeSet<String> = folders
        .filter(|entry| entry.path().join("Cargo.toml").is_file())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    assert!(crates.iter().map(String::as_str).eq(known), "say of each what it may depend on");
    for (krate, allowed) in MAY_DEPEND_ON {
        let ours = dependencies(krate);
        let ours = ours.iter().filter_map(|name| name.strip_prefix("event-host-"));
        let wrong: Vec<_> = ours.filter(|other| !allowed.contains(other)).collect();
        assert!(wrong.is_empty(), "{krate} depends on {wrong:?}");
    }
}

#[test]
fn only_the_stores_know_sqlx_and_only_the_sandbox_wasmtime() {
    for krate in crates() {
        for (package, owners) in ONLY_IN {
            let mut found = dependencies(krate).into_iter();
            let found = found.find(|name| name.starts_with(package));
            assert!(found.is_none() || owners.contains(&krate), "`{krate}` depends on {found:?}");
        }
    }
}

/// A file of a crate, by its path below `src`, and how deep its module is: 1 below the root.
struct Source {
    path: PathBuf,
    depth: usize,
    text: String,
}

/// Every file below a folder of sources.
fn sources(root: &Path) -> Vec<Source> {
    fn below(root: &Path, path: &Path, depth: usize, found: &mut Vec<Source>) {
        for entry in fs::read_dir(path).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                below(root, &path, depth + 1, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let is_the_folders =
                    ["mod.rs", "lib.rs", "main.rs"].iter().any(|f| path.ends_with(f));
                let depth = depth + usize::from(!is_the_folders);
                let text = read(&path);
                let path = path.strip_prefix(root).expect("below the root").to_owned();
                found.push(Source { path, depth, text });
            }
        }
    }
    let mut found = Vec::new();
    below(root, root, 0, &mut found);
    assert!(!found.is_empty(), "{}", root.display());
    found
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
            let before = &source[..at];
            // Part of a longer name, or of a path that leads further up.
            if before.ends_with(is_name)
                || before.ends_with("super::")
                || after.starts_with("super::")
            {
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

/// What the modules of a crate may not name: the command line is above all else, and a
/// leadership is below what it is for.
#[test]
fn no_module_names_one_that_is_above_it() {
    let mut wrong = Vec::new();
    for (krate, is_below, above) in [
        ("", (|path| !path.starts_with("cli")) as fn(&Path) -> bool, &["cli"][..]),
        ("delivery", |path| path.starts_with("leadership"), &["group", "admission", "supervisor"]),
        ("delivery", |path| path.starts_with("group"), &["leadership", "supervisor"]),
    ] {
        for Source { path, depth, text } in sources(&folder(krate).join("src")) {
            if path == Path::new("lib.rs") || path == Path::new("main.rs") || !is_below(&path) {
                continue;
            }
            let code = code(&text);
            let named = names_at_the_root(&code, depth);
            wrong.extend(
                above
                    .iter()
                    .filter(|module| named.contains(**module))
                    .map(|module| format!("{}: names {module}", path.display())),
            );
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

/// The modules of a crate, or of a folder of it, each with the others that it imports.
fn imports(krate: &str, room: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let prefix = match room.replace('/', "::") {
        root if root.is_empty() => "crate::".to_owned(),
        room => format!("crate::{room}::"),
    };
    for Source { path, depth, text } in sources(&folder(krate).join("src").join(room)) {
        let mut parts = path.iter().map(|part| part.to_string_lossy().replace(".rs", ""));
        let first = parts.next().expect("a name");
        let is_test = first == "tests" || parts.any(|part| part == "tests");
        if is_test || ["mod", "lib", "main"].contains(&first.as_str()) {
            continue;
        }
        let code = code(&text);
        let named = names_after(&code, &[&prefix, &"super::".repeat(depth)]);
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

/// The folders of modules of a crate, those of tests aside; the root has no name.
fn rooms(krate: &str) -> BTreeSet<String> {
    let sources = sources(&folder(krate).join("src"));
    let folders = sources.iter().filter_map(|source| source.path.parent());
    let folders = folders.flat_map(Path::ancestors).filter(|folder| !is_of_tests(folder));
    folders.map(|folder| folder.to_string_lossy().into_owned()).collect()
}

/// Whether the path is one of tests, among which are the suites of the stores.
fn is_of_tests(path: &Path) -> bool {
    path.iter().any(|part| ["tests", "tests.rs", "suite"].iter().any(|tests| part == *tests))
}

/// All crates of the host.
fn crates() -> impl Iterator<Item = &'static str> {
    MAY_DEPEND_ON.into_iter().map(|(krate, _)| krate).chain([""])
}

#[test]
fn the_modules_of_a_crate_import_one_way() {
    let mut wrong = Vec::new();
    for krate in crates() {
        for room in rooms(krate) {
            let circles = in_circles(imports(krate, &room));
            if !circles.is_empty() {
                wrong.push(format!("{krate}/{room}: {}", circles.join(", ")));
            }
        }
    }
    assert!(wrong.is_empty(), "circles, and what is above them:\n{}", wrong.join("\n"));
    assert!(!imports("delivery", "group").is_empty() && !imports("", "app").is_empty());
    let circle = [("a", "b"), ("b", "c"), ("c", "b"), ("d", "d")];
    let circle = circle.map(|(module, named)| (module.to_owned(), [named.to_owned()].into()));
    assert_eq!(in_circles(circle.into()), ["a", "b", "c"]);
}

/// The lines of a file before its unit tests.
fn production(source: &str) -> &str {
    &source[..source.find("#[cfg(test)]\nmod tests {").unwrap_or(source.len())]
}

/// The functions of a source that rustfmt has formatted, each with its number of lines.
fn functions(source: &str) -> Vec<(&str, usize)> {
    let lines: Vec<&str> = source.lines().collect();
    let mut found = Vec::new();
    for (first, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let Some(at) = code.find("fn ").filter(|at| {
            let before = ["pub", "pub(crate)", "pub(super)", "const", "async", "unsafe"];
            code[..*at]
                .split_whitespace()
                .all(|word| before.contains(&word) || word.starts_with("pub(in"))
        }) else {
            continue;
        };
        let has_body = lines[first..].iter().find_map(|line| {
            let line = line.trim_end();
            let opens = line.ends_with('{') || line.ends_with('}');
            (opens || line.ends_with(';')).then_some(opens)
        });
        let end = format!("{}}}", &line[..line.len() - code.len()]);
        let last = lines[first..].iter().position(|line| *line == end || line.ends_with("{}"));
        if let (Some(true), Some(last)) = (has_body, last) {
            found.push((name(&code[at + 3..]), last + 1));
        }
    }
    found
}

#[test]
fn no_file_is_longer_than_500_lines_and_no_function_than_100() {
    let (mut wrong, mut files) = (Vec::new(), 0);
    for krate in crates() {
        let root = folder(krate).join("src");
        for Source { path, text, .. } in sources(&root) {
            if is_of_tests(&path) {
                continue;
            }
            files += 1;
            let code = production(&text);
            let lines = code.lines().count();
            if lines > 500 {
                wrong.push(format!("{krate}/{}: {lines} lines", path.display()));
            }
            let long = functions(code).into_iter().filter(|(_, lines)| *lines > 100);
            wrong.extend(
                long.map(|(f, lines)| format!("{krate}/{}: {f}: {lines} lines", path.display())),
            );
        }
    }
    assert!(files > 200, "{files} files");
    assert!(wrong.is_empty(), "divide these by subject:\n{}", wrong.join("\n"));
    let two = "impl A {\n    fn none();\n    pub(crate) async fn one() {\n        x\n    }\n}\nfn two() {}\n";
    assert_eq!(functions(two), [("one", 3), ("two", 1)]);
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
}
