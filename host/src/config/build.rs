//! `[handlers.NAME.build]`: how a handler's component is made.

use std::path::{Path, PathBuf};

use super::component::Component;
use super::document::Text;
use super::section::Section;
use crate::language::Language;

/// How a handler's component is made from its sources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildSettings {
    /// What makes it.
    pub by: BuildBy,
    /// The folder of the sources, in which everything runs.
    pub folder: PathBuf,
    /// What the command leaves, if that is not the component itself.
    pub output: Option<PathBuf>,
    /// The file that is made.
    pub component: PathBuf,
    /// What `host run --watch` builds again for; `None` where the language says it.
    pub watch: Option<Vec<String>>,
    /// The folder of the settings file, where relative paths begin.
    pub root: PathBuf,
}

/// What makes a component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BuildBy {
    /// The recipe that the host has for a language.
    Recipe(Language),
    /// A program and its arguments.
    Command(Vec<String>),
}

/// What is said of a table that does not say what builds.
const HINT: &str =
    "write `lang = \"python\"` or another language, or `command = [\"make\", \"orders.wasm\"]`";

/// Reads the table, if it is there. `component` is `None` where it has a problem of its
/// own; the answer is `None` after a problem, too.
pub(super) fn build(
    mut section: Section<'_>,
    component: Option<&Component>,
    directory: &Path,
) -> Option<BuildSettings> {
    let is_there = section.is_there();
    let at = section.at();
    let lang = section.text("lang", "\"python\"");
    let has_lang = lang.is_some() || section.has("lang");
    let language = lang.and_then(|text| match text.value.parse::<Language>() {
        Ok(language) => Some(language),
        Err(why) => {
            section.problem(text.at, format!("`lang`: {why}; `command` runs any other builder"));
            None
        }
    });
    let has_command = section.has("command");
    let command = command(&mut section);
    let folder = path(&mut section, "dir", "\"orders\"", directory);
    let output = path(&mut section, "output", "\"orders/zig-out/bin/orders.wasm\"", directory);
    let has_output = section.has("output");
    let watch = watch(&mut section);
    if is_there && !has_lang && !has_command {
        section.problem(at, format!("nothing says how to build: {HINT}"));
    }
    if has_lang && has_command {
        section.problem(
            at,
            "`lang` and `command` are both set, and only one of them builds: leave one out",
        );
    }
    if has_lang && has_output {
        section.problem(
            at,
            "`output` goes with `command`: with `lang`, `component` says where the component goes",
        );
    }
    if is_there && matches!(component, Some(Component::Deployed)) {
        section.problem(
            at,
            "`build` makes the file that `component` names, and `component` is \"deployed\": name a file, and give it to `host deploy` once it is built",
        );
    }
    section.finish();
    let Some(Component::File(component)) = component else { return None };
    let by = match (language, command) {
        (Some(language), None) => BuildBy::Recipe(language),
        (None, Some(command)) => BuildBy::Command(command),
        _ => return None,
    };
    let of_component = || component.parent().unwrap_or(directory).to_owned();
    Some(BuildSettings {
        by,
        folder: folder.unwrap_or_else(of_component),
        output,
        component: component.clone(),
        watch,
        root: directory.to_owned(),
    })
}

/// A program and its arguments; `None` after a problem, too.
fn command(section: &mut Section<'_>) -> Option<Vec<String>> {
    let (at, texts) = section.texts("command", "[\"make\", \"orders.wasm\"]")?;
    let words: Option<Vec<String>> =
        texts.into_iter().map(|text| text.map(|text| text.value)).collect();
    let words = words?;
    if words.first().is_none_or(String::is_empty) {
        section.problem(
            at,
            "`command` names no program: write one such as [\"make\", \"orders.wasm\"]",
        );
        return None;
    }
    if words.iter().any(|word| word.contains('\0')) {
        section.problem(at, "`command` has a NUL character, which no program can be given");
        return None;
    }
    Some(words)
}

fn path(
    section: &mut Section<'_>,
    key: &'static str,
    example: &str,
    directory: &Path,
) -> Option<PathBuf> {
    let text = section.text(key, example)?;
    if text.value.is_empty() || text.value.contains('\0') {
        section.problem(
            text.at,
            format!("`{key}` is {}, which is no path: write one such as {example}", text.quoted()),
        );
        return None;
    }
    Some(directory.join(text.value))
}

fn watch(section: &mut Section<'_>) -> Option<Vec<String>> {
    let (_, texts) = section.texts("watch", "[\"orders/**/*.py\"]")?;
    let mut patterns = Vec::new();
    for text in texts.into_iter().flatten() {
        match refused(&text) {
            Some(why) => section.problem(text.at, why),
            None => patterns.push(text.value),
        }
    }
    Some(patterns)
}

/// Why a pattern names no files below the settings file's folder.
fn refused(text: &Text<'_>) -> Option<String> {
    let given = Path::new(&text.value);
    let leads_out = given.is_absolute() || given.components().any(|part| part.as_os_str() == "..");
    (text.value.is_empty() || leads_out).then(|| {
        format!(
            "`watch` holds {}: write patterns of files below the folder of this file, such as \"orders/**/*.py\"",
            text.quoted()
        )
    })
}
