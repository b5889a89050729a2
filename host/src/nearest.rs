//! What is most probably meant by a word that is not known.

/// So alike two words are at least: 1 is the same word.
const LEAST: f64 = 0.85;

/// The known word that is most like the given one, if one is like it at all.
pub(crate) fn nearest<'a>(
    given: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    known
        .into_iter()
        .map(|known| (strsim::jaro_winkler(given, known), known))
        .filter(|(likeness, _)| *likeness >= LEAST)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, known)| known)
}
