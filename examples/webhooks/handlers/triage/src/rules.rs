//! Which labels an issue gets.

/// A label, and the words of which one is enough.
const RULES: &[(&str, &[&str])] = &[
    ("bug", &["bug", "crash", "crashes", "error", "panic", "broken", "regression", "fails"]),
    ("documentation", &["docs", "documentation", "readme", "typo", "spelling", "example"]),
    ("performance", &["slow", "performance", "latency", "memory", "leak", "timeout"]),
    ("question", &["question", "how", "why", "help"]),
    ("security", &["security", "vulnerability", "cve", "password", "token", "xss"]),
];

/// What an issue without any label gets when no rule fits.
const NO_RULE: &str = "needs-triage";

/// The labels to add to those that are present, in the order of the rules.
pub(crate) fn labels(title: &str, body: &str, present: &[String]) -> Vec<&'static str> {
    let text = format!("{title} {body}").to_lowercase();
    let words: Vec<&str> = text.split(|c: char| !c.is_alphanumeric()).collect();
    let fitting: Vec<&'static str> = RULES
        .iter()
        .filter(|(_, wanted)| wanted.iter().any(|word| words.contains(word)))
        .map(|(label, _)| *label)
        .collect();
    if fitting.is_empty() && present.is_empty() {
        return vec![NO_RULE];
    }
    fitting.into_iter().filter(|label| !present.iter().any(|own| own == label)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_words_count_in_any_case() {
        assert_eq!(labels("CRASH on start", "", &[]), ["bug"]);
        assert_eq!(labels("Crashing", "", &[]), [NO_RULE]);
        assert_eq!(labels("Slow", "see the README.", &[]), ["documentation", "performance"]);
    }

    #[test]
    fn present_labels_are_not_added_again() {
        let bug = ["bug".to_owned()];
        assert_eq!(labels("Crash and leak", "", &bug), ["performance"]);
        assert!(labels("Hello", "", &bug).is_empty());
    }
}
