//! The languages that the host knows how to build a handler from.

use std::fmt;
use std::str::FromStr;

/// A language with a recipe, and with the name that `lang = "…"` has for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Language {
    /// Rust, by cargo.
    Rust,
    /// JavaScript.
    Js,
    /// TypeScript.
    Ts,
    /// Python.
    Python,
    /// Go.
    Go,
    /// C.
    C,
    /// C++.
    Cpp,
    /// Zig.
    Zig,
    /// WebAssembly's own text format.
    Wat,
}

impl Language {
    /// All of them, in the order in which they are listed to people.
    pub const ALL: [Self; 9] = [
        Self::Rust,
        Self::Js,
        Self::Ts,
        Self::Python,
        Self::Go,
        Self::C,
        Self::Cpp,
        Self::Zig,
        Self::Wat,
    ];

    /// The name in settings and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rust => "rust",
            Self::Js => "js",
            Self::Ts => "ts",
            Self::Python => "python",
            Self::Go => "go",
            Self::C => "c",
            Self::Cpp => "cpp",
            Self::Zig => "zig",
            Self::Wat => "wat",
        }
    }

    /// The name that people call it by.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Rust => "Rust",
            Self::Js => "JavaScript",
            Self::Ts => "TypeScript",
            Self::Python => "Python",
            Self::Go => "Go",
            Self::C => "C",
            Self::Cpp => "C++",
            Self::Zig => "Zig",
            Self::Wat => "WAT",
        }
    }
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no language has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no language that the host knows: use one of {}{}", names(), nearest(given))]
pub struct UnknownLanguage {
    /// The name.
    given: String,
}

fn names() -> String {
    Language::ALL.map(Language::name).join(", ")
}

/// The language that was probably meant, in words. Short names are too much like one
/// another to guess from.
fn nearest(given: &str) -> String {
    let given = given.to_lowercase();
    let distance = |language: &Language| {
        [language.name(), language.title()]
            .map(|name| strsim::damerau_levenshtein(&given, &name.to_lowercase()))
            .into_iter()
            .min()
            .unwrap_or(usize::MAX)
    };
    let most = if given.len() > 3 { 2 } else { 0 };
    Language::ALL
        .into_iter()
        .min_by_key(distance)
        .filter(|language| distance(language) <= most)
        .map_or_else(String::new, |language| format!("; is {language} meant?"))
}

impl FromStr for Language {
    type Err = UnknownLanguage;

    fn from_str(text: &str) -> Result<Self, UnknownLanguage> {
        Self::ALL
            .into_iter()
            .find(|language| language.name() == text)
            .ok_or_else(|| UnknownLanguage { given: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_language_is_known_by_its_name_and_the_nearest_one_is_suggested() {
        for language in Language::ALL {
            assert_eq!(language.name().parse(), Ok(language));
        }
        for (given, meant) in [("javascript", "js"), ("C++", "cpp"), ("pyhton", "python")] {
            let why = given.parse::<Language>().unwrap_err().to_string();
            assert!(why.ends_with(&format!("is {meant} meant?")), "{why}");
        }
        let why = "cobol".parse::<Language>().unwrap_err().to_string();
        assert!(why.ends_with("c, cpp, zig, wat"), "{why}");
    }
}
