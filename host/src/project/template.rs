//! The templates: what a new handler begins with.
//!
//! `host/templates` holds them. A project gets what `LANGUAGE/all` holds and what
//! `LANGUAGE/TEMPLATE` does, the latter where both have a file, and the event of all
//! projects. `settings` has what a template adds to the settings file. In the text `{{name}}` and `{{sdk_version}}` are filled in.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use include_dir::{Dir, include_dir};

use crate::language::Language;
use crate::nearest::nearest;
use crate::sdk;
use event_host_core::event::HandlerName;

static FILES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/templates");

/// The folder of what all templates of a language have.
const COMMON: &str = "all";

/// The folder of what both languages of the engine StarlingMonkey need to speak HTTP.
const ENGINE_OF_HTTP: &str = "js/engine";

/// The event that every project gets.
pub const EVENT: &str = "event.json";

/// What a new handler does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Template {
    /// Parses JSON, counts in the state, emits.
    Hello,
    /// Handles several events a call.
    Batch,
    /// Sends a request by `wasi:http`.
    HttpCall,
    /// Is an HTTP server: exports `wasi:http/incoming-handler`.
    Http,
}

impl Template {
    /// All of them, in the order in which they are listed to people.
    pub const ALL: [Self; 4] = [Self::Hello, Self::Batch, Self::HttpCall, Self::Http];

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hello => "hello",
            Self::Batch => "batch",
            Self::HttpCall => "http-call",
            Self::Http => "http",
        }
    }

    /// What it shows, in a few words.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::Hello => "reads an event's JSON, counts in the state, emits an event",
            Self::Batch => "handles several events in one call",
            Self::HttpCall => "sends an HTTP request for each event",
            Self::Http => "is an HTTP server, which any host of wasi:http runs too",
        }
    }

    /// Why a language has no such template, or `None` if it has one.
    #[must_use]
    pub fn missing_in(self, language: Language) -> Option<&'static str> {
        if FILES.get_dir(folder(language, self.name())).is_some() {
            return None;
        }
        Some(match language {
            Language::Wat => "by hand the bindings of wasi:http take more text than a handler",
            Language::Go => {
                "Go's compiler makes modules of WASI's first preview, which has no HTTP"
            }
            Language::C | Language::Cpp | Language::Zig => {
                "its SDK has no bindings of wasi:http; wit-bindgen makes some for C"
            }
            _ => "its SDK has no bindings of wasi:http",
        })
    }

    /// The templates that a language has.
    pub fn of(language: Language) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |template| template.missing_in(language).is_none())
    }

    /// The files of a project, by their path in its folder, with their text.
    #[must_use]
    pub fn files(self, language: Language, name: &HandlerName) -> BTreeMap<PathBuf, String> {
        let mut files = BTreeMap::new();
        let mut folders = vec![folder(language, COMMON)];
        if self.has_engine_of_http(language) {
            folders.push(PathBuf::from(ENGINE_OF_HTTP));
        }
        folders.push(folder(language, self.name()));
        for folder in folders {
            if let Some(dir) = FILES.get_dir(&folder) {
                collect(dir, &folder, &mut |path, text| {
                    files.insert(path, filled_in(text, name));
                });
            }
        }
        if let Some(event) = FILES.get_file(EVENT).and_then(|file| file.contents_utf8()) {
            files.insert(PathBuf::from(EVENT), event.to_owned());
        }
        files
    }

    /// What the settings of such a handler say, beside where its component comes from.
    #[must_use]
    pub fn settings(self) -> &'static str {
        let file = FILES.get_file(format!("settings/{}.toml", self.name()));
        file.and_then(|file| file.contents_utf8()).unwrap_or_default()
    }

    /// Whether a project of it has the language's SDK: what speaks HTTP alone does not.
    #[must_use]
    pub const fn takes_sdk(self, language: Language) -> bool {
        !matches!(self, Self::Http) && !self.has_engine_of_http(language)
    }

    /// Whether it is JavaScript of another engine than the SDK's, which has `fetch`.
    const fn has_engine_of_http(self, language: Language) -> bool {
        matches!(self, Self::HttpCall | Self::Http)
            && matches!(language, Language::Js | Language::Ts)
    }

    /// What builds it, where the recipe of the language does not: a program and arguments,
    /// which run in the project's folder.
    #[must_use]
    pub fn command(self, language: Language) -> Option<Vec<String>> {
        let file = FILES.get_file(format!("settings/{}-{}.json", self.name(), language.name()))?;
        serde_json::from_slice(file.contents()).ok()
    }
}

fn folder(language: Language, part: &str) -> PathBuf {
    Path::new(language.name()).join(part)
}

/// Gives each file below a folder: its path from `top`, and its text.
fn collect(dir: &Dir<'static>, top: &Path, found: &mut impl FnMut(PathBuf, &'static str)) {
    for file in dir.files() {
        if let (Ok(path), Some(text)) = (file.path().strip_prefix(top), file.contents_utf8()) {
            found(path.to_owned(), text);
        }
    }
    for dir in dir.dirs() {
        collect(dir, top, found);
    }
}

fn filled_in(text: &str, name: &HandlerName) -> String {
    text.replace("{{name}}", name.as_str()).replace("{{sdk_version}}", sdk::VERSION)
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no template has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no template: use one of {}{}", Template::ALL.map(Template::name).join(", "), meant(given))]
pub struct UnknownTemplate {
    given: String,
}

fn meant(given: &str) -> String {
    nearest(given, Template::ALL.map(Template::name))
        .map_or_else(String::new, |template| format!("; is {template} meant?"))
}

impl FromStr for Template {
    type Err = UnknownTemplate;

    fn from_str(text: &str) -> Result<Self, UnknownTemplate> {
        Self::ALL
            .into_iter()
            .find(|template| template.name() == text)
            .ok_or_else(|| UnknownTemplate { given: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use event_host_core::event::Event;

    #[test]
    fn every_language_has_hello_and_batch_and_a_reason_for_what_it_has_not() {
        for language in Language::ALL {
            let templates: Vec<_> = Template::of(language).collect();
            assert!(templates.starts_with(&[Template::Hello, Template::Batch]), "{language}");
        }
        assert_eq!(Template::Http.missing_in(Language::Rust), None);
        assert!(
            Template::Http.missing_in(Language::Wat).is_some_and(|why| why.contains("by hand"))
        );
    }

    #[test]
    fn every_project_has_a_readme_of_its_commands_an_event_and_nothing_left_to_fill_in() {
        let name: HandlerName = "orders-2.eu".parse().unwrap();
        for language in Language::ALL {
            for template in Template::of(language) {
                let files = template.files(language, &name);
                let which = format!("{language}/{template}");
                for (path, text) in &files {
                    let left = ["{{name}}", "{{sdk_version}}", "hello.wasm"];
                    let found = left.iter().find(|left| text.contains(*left));
                    assert_eq!(found, None, "{which}: {}", path.display());
                }
                let readme = &files[Path::new("README.md")];
                assert!(readme.starts_with("# orders-2.eu\n"), "{which}");
                // WAT has no unit test.
                let commands = if language == Language::Wat { 2 } else { 3 };
                assert_eq!(super::super::commands(readme).len(), commands, "{which}: {readme}");
                let event = &files[Path::new(EVENT)];
                assert_eq!(event.lines().count(), 1, "`host publish --file` reads lines");
                Event::from_json(event.clone().into_bytes()).unwrap();
                assert!(files.contains_key(Path::new(".gitignore")), "{which}");
            }
        }
    }

    #[test]
    fn a_template_is_known_by_its_name_and_the_nearest_one_is_suggested() {
        for template in Template::ALL {
            assert_eq!(template.name().parse(), Ok(template));
        }
        let why = "helo".parse::<Template>().unwrap_err().to_string();
        assert!(why.ends_with("is hello meant?"), "{why}");
        let why = "cron".parse::<Template>().unwrap_err().to_string();
        assert!(why.ends_with("hello, batch, http-call, http"), "{why}");
    }
}
