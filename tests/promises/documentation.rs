//! What the documents say of the project itself: the tests that they name as a proof are
//! there, and what they link to is.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder above")
}

/// Every file below a folder with one of these endings, but for what is built.
fn files(folder: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && name != "node_modules" && !name.starts_with('.') {
                found.extend(files(&path, endings));
            }
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// A document, by its path from the root, with its text outside of code blocks.
fn documents() -> Vec<(PathBuf, String)> {
    let read = |path: PathBuf| {
        let mut is_code = false;
        let prose = fs::read_to_string(&path)
            .expect("text")
            .lines()
            .filter(|line| {
                let is_fence = line.trim_start().starts_with("```");
                is_code ^= is_fence;
                !is_code && !is_fence
            })
            .map(|line| format!("{line}\n"))
            .collect();
        (path, prose)
    };
    files(root(), &[".md"]).into_iter().map(read).collect()
}

/// What stands between backticks on one line.
fn inline_code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// Words of lower case joined by underscores, and how many.
fn words(code: &str) -> Option<usize> {
    let is_word = |word: &str| {
        !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    };
    code.split('_').all(is_word).then(|| code.split('_').count())
}

/// The names of all functions of the sources.
fn functions(source: &str) -> impl Iterator<Item = &str> {
    source.split("fn ").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
        (rest[end..].starts_with(['(', '<'])).then_some(&rest[..end])
    })
}

/// The lines in which a document names what proves it: from one that begins so to the end
/// of its paragraph.
fn proofs(prose: &str) -> impl Iterator<Item = &str> {
    let mut is_proof = false;
    prose.lines().filter(move |line| {
        let text = line.trim_start();
        is_proof = text.starts_with("Tests: ")
            || text.starts_with("Test: ")
            || is_proof && !text.is_empty() && !text.starts_with("- ");
        is_proof
    })
}

#[test]
fn every_test_that_a_document_names_is_a_function_of_the_sources() {
    const SOURCES: [&str; 10] =
        [".rs", ".sql", ".wit", ".toml", ".h", ".hpp", ".go", ".js", ".py", ".zig"];
    let sources: Vec<String> =
        files(root(), &SOURCES).iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let known: BTreeSet<&str> = sources.iter().flat_map(|source| functions(source)).collect();
    let mut named = 0;
    let mut missing = Vec::new();
    for (path, prose) in documents() {
        for name in proofs(&prose).flat_map(inline_code) {
            named += 1;
            if !known.contains(name) {
                missing.push(format!("{}: `{name}` is no function", path.display()));
            }
        }
        // Elsewhere a name of so many words is a test too, or a constraint, a setting or
        // another thing that the sources have by that name.
        for name in inline_code(&prose).filter(|code| words(code).is_some_and(|words| words > 3)) {
            // A metric has a suffix that its kind adds.
            let name =
                ["_total", "_info"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
            if !known.contains(name) && !sources.iter().any(|source| source.contains(name)) {
                missing.push(format!("{}: `{name}` is nowhere in the sources", path.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    assert!(
        named > 100,
        "only {named} tests are named: are they still in paragraphs that begin with `Tests: `?"
    );
}

/// The anchor that a heading gets, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let heading = heading.trim().to_lowercase();
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The targets of the links of a document.
fn links(prose: &str) -> impl Iterator<Item = &str> {
    prose.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

#[test]
fn every_relative_link_of_a_document_leads_somewhere() {
    let mut followed = 0;
    let mut broken = Vec::new();
    for (path, prose) in documents() {
        for link in
            links(&prose).filter(|link| !link.contains("://") && !link.starts_with("mailto:"))
        {
            followed += 1;
            let (file, fragment) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() {
                path.clone()
            } else {
                path.parent().expect("a folder above").join(file)
            };
            let mut problem = (!target.exists()).then_some("there is no such file");
            if problem.is_none() && !fragment.is_empty() {
                let text = fs::read_to_string(&target).unwrap();
                let mut headings = text.lines().filter(|line| line.starts_with('#'));
                if !headings.any(|line| anchor(line.trim_start_matches('#')) == fragment) {
                    problem = Some("the file has no such heading");
                }
            }
            if let Some(problem) = problem {
                broken.push(format!("{}: {link}: {problem}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(followed > 30, "only {followed} links are found");
}
