//! A media type, as far as it says which mode a request has.

/// A media type that was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MediaType {
    /// Without its parameters, in lower case.
    pub(super) essence: String,
    /// Its parameter `charset`, in lower case and without quotes.
    pub(super) charset: Option<String>,
}

impl MediaType {
    /// Reads as much as is well-formed.
    pub(super) fn read(text: &str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let essence = parts.next().unwrap_or_default().to_ascii_lowercase();
        let charset = parts.find_map(|parameter| {
            let (name, value) = parameter.split_once('=')?;
            let value = value.trim().trim_matches('"').to_ascii_lowercase();
            name.trim().eq_ignore_ascii_case("charset").then_some(value)
        });
        Self { essence, charset }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_charset_is_found_however_it_is_written() {
        for (text, essence, charset) in [
            ("application/JSON", "application/json", None),
            ("a/b; charset=UTF-8", "a/b", Some("utf-8")),
            ("a/b ;x=y;  Charset=\"Latin1\"", "a/b", Some("latin1")),
            ("", "", None),
        ] {
            let charset = charset.map(str::to_owned);
            assert_eq!(MediaType::read(text), MediaType { essence: essence.to_owned(), charset });
        }
    }
}
