//! Text that somebody else wrote, on its way to a terminal or a log.
//!
//! Handlers, publishers, components, other roles of the database and other hosts write
//! texts that an operator reads: payloads, failures, attributes, names of imports, notes
//! of groups, log lines. A terminal obeys some of their characters, and others make a
//! reader see what is not there. The functions here are the one place that knows these
//! characters. The command line and the log pass everything that they write
//! through them, so that a text which nobody thought of is cleaned as well; whoever puts a
//! text into a field of its own has to say that it is [one line](one_line) or where its
//! [further lines](with_further_lines) begin.

use std::borrow::Cow;
use std::fmt::Write as _;

/// What stands for a character that is not shown.
const REPLACEMENT: char = '\u{fffd}';

/// Whether a character commands a terminal, reorders what is around it, or cannot be seen:
/// the controls C0 (with newline and tab), DEL and C1, the separators of lines and
/// paragraphs, the bidirectional controls, and what has no width.
///
/// Combining accents, variation selectors and spaces are none of these. Sources: Unicode's
/// properties `Bidi_Control` and `Default_Ignorable_Code_Point`, and the categories Cc, Zl
/// and Zp.
#[must_use]
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}'                       // soft hyphen
            | '\u{34f}'                    // combining grapheme joiner
            | '\u{61c}'                    // Arabic letter mark
            | '\u{115f}'..='\u{1160}'      // Hangul fillers
            | '\u{17b4}'..='\u{17b5}'      // inherent vowels of Khmer
            | '\u{180e}'                   // Mongolian vowel separator
            | '\u{200b}'..='\u{200f}'      // zero-width space, joiners, direction marks
            | '\u{2028}'..='\u{202e}'      // separators, embeddings, overrides
            | '\u{2060}'..='\u{206f}'      // joiner, invisible operators, isolates
            | '\u{3164}' | '\u{ffa0}'      // Hangul fillers
            | '\u{feff}'                   // zero-width no-break space
            | '\u{fff0}'..='\u{fffb}'      // unassigned, and annotations
            | '\u{1bca0}'..='\u{1bca3}'    // controls of shorthand
            | '\u{1d173}'..='\u{1d17a}'    // controls of musical notation
            | '\u{e0000}'..='\u{e00ff}'    // tags
            | '\u{e01f0}'..='\u{e0fff}')
}

/// The text with a replacement character for each unsafe one. Newlines and tabs stay, and
/// of a line's end in two characters the newline.
#[must_use]
pub fn clean(text: &str) -> Cow<'_, str> {
    let keeps = |c: char| matches!(c, '\n' | '\t') || !is_unsafe(c);
    if text.chars().all(keeps) {
        return Cow::Borrowed(text);
    }
    let unix = text.replace("\r\n", "\n");
    Cow::Owned(unix.chars().map(|c| if keeps(c) { c } else { REPLACEMENT }).collect())
}

/// The text as one line: [`clean`], with a space for each newline and tab.
#[must_use]
pub fn one_line(text: &str) -> Cow<'_, str> {
    let text = clean(text);
    if text.contains(['\n', '\t']) { Cow::Owned(text.replace(['\n', '\t'], " ")) } else { text }
}

/// The text, [`clean`], with `margin` before each line but the first: no line of the text
/// begins where a line of the host does.
#[must_use]
pub fn with_further_lines<'a>(text: &'a str, margin: &str) -> Cow<'a, str> {
    let text = clean(text);
    if text.contains('\n') { Cow::Owned(text.replace('\n', &format!("\n{margin}"))) } else { text }
}

/// JSON with an escape for each unsafe character but the newlines between its parts. It
/// means the same: outside of its strings JSON has no such characters.
#[must_use]
pub fn json(json: &str) -> Cow<'_, str> {
    let keeps = |c: char| c == '\n' || !is_unsafe(c);
    if json.chars().all(keeps) {
        return Cow::Borrowed(json);
    }
    let mut escaped = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if keeps(c) {
            escaped.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(escaped, "\\u{unit:04x}");
        }
    }
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_can_be_seen_stays_and_what_deceives_goes() {
        for fine in
            ["", "plain", "Zürich — 東京", "नमस्ते", "שלום", "e\u{301}", "❤\u{fe0f}", "a\tb\nc"]
        {
            assert!(matches!(clean(fine), Cow::Borrowed(same) if same == fine), "{fine}");
        }
        for (foreign, shown) in [
            ("\x1b]0;t\x07", "\u{fffd}]0;t\u{fffd}"),
            ("a\rb\r\nc", "a\u{fffd}b\nc"),
            ("\x7f\u{85}\u{9b}31m", "\u{fffd}\u{fffd}\u{fffd}31m"),
            ("a\u{202e}b\u{2066}c", "a\u{fffd}b\u{fffd}c"),
            ("a\u{200b}\u{200d}\u{feff}b", "a\u{fffd}\u{fffd}\u{fffd}b"),
            ("a\u{2028}b\u{e0041}", "a\u{fffd}b\u{fffd}"),
        ] {
            assert_eq!(clean(foreign), shown);
        }
    }

    #[test]
    fn no_further_line_begins_where_the_hosts_do() {
        assert_eq!(one_line("a\r\nb\tc"), "a b c");
        assert_eq!(with_further_lines("a\nb\n\nc", "  "), "a\n  b\n  \n  c");
    }

    #[test]
    fn escaped_json_means_the_same() {
        let text = "a\x1b\u{9b}\u{7f}\u{202e}\u{200b}\u{e0041}é\n";
        let raw = serde_json::to_string_pretty(&serde_json::json!({ "t": [text] })).unwrap();
        let escaped = json(&raw);
        assert!(escaped.contains("\\u009b\\u007f\\u202e\\u200b\\udb40\\udc41é"), "{escaped}");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&escaped).unwrap(),
            serde_json::json!({ "t": [text] })
        );
    }

    proptest! {
        #[test]
        fn nothing_unsafe_passes(text in any::<String>()) {
            let fine = |c: char| matches!(c, '\n' | '\t') || !is_unsafe(c);
            prop_assert!(clean(&text).chars().all(fine));
            prop_assert!(!one_line(&text).chars().any(is_unsafe));
            let raw = serde_json::to_string(&text).unwrap();
            let escaped = json(&raw);
            prop_assert!(!escaped.chars().any(is_unsafe));
            prop_assert_eq!(serde_json::from_str::<String>(&escaped).unwrap(), text);
        }
    }
}
