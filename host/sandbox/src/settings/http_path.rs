//! The path of the requests that a handler gets its events by.

use std::fmt;
use std::str::FromStr;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// What stands for the event's type.
const TYPE: &str = "{type}";

/// The longest path, in bytes; types have 1 KiB besides.
const BYTES: usize = 1_024;

/// What a part of a path is written in: the unreserved characters of RFC 3986, section 2.3.
const ESCAPES: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The path, and query if any, of the requests to a handler of `wasi:http`.
///
/// ```
/// use event_host_sandbox::settings::HttpPath;
///
/// let fixed: HttpPath = "/events?from=host".parse().unwrap();
/// assert_eq!(fixed.of("order.paid"), "/events?from=host");
/// assert_eq!(HttpPath::default().of("order/paid"), "/order%2Fpaid");
/// assert!("events".parse::<HttpPath>().is_err(), "it begins with a slash");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpPath(String);

/// A text that is no [`HttpPath`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "write a path that begins with `/`, such as \"/events\" or \"/hooks/{{type}}\", in characters of a URL and of at most {BYTES} bytes; `{{type}}`, once, stands for the event's type"
)]
pub struct InvalidHttpPath;

impl HttpPath {
    /// The path for an event of this type.
    #[must_use]
    pub fn of(&self, event_type: &str) -> String {
        self.0.replacen(TYPE, &utf8_percent_encode(event_type, ESCAPES).to_string(), 1)
    }
}

impl Default for HttpPath {
    fn default() -> Self {
        Self(format!("/{TYPE}"))
    }
}

impl fmt::Display for HttpPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for HttpPath {
    type Err = InvalidHttpPath;

    fn from_str(text: &str) -> Result<Self, InvalidHttpPath> {
        let of_a_url = |b: u8| b.is_ascii_alphanumeric() || b"-._~/?:@!$&'()*+,;=%".contains(&b);
        let rest = text.replacen(TYPE, "", 1);
        let fits = text.starts_with('/')
            && text.len() <= BYTES
            && rest.bytes().all(of_a_url)
            && http::uri::PathAndQuery::from_str(&rest).is_ok();
        if fits { Ok(Self(text.to_owned())) } else { Err(InvalidHttpPath) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_told_from_other_text() {
        for good in ["/", "/{type}", "/events", "/a/{type}/b?c=d&e=%20", "/hooks?type={type}"] {
            assert_eq!(good.parse::<HttpPath>().unwrap().to_string(), good);
        }
        let long = format!("/{}", "a".repeat(BYTES));
        for bad in
            ["", "events", "{type}", "/a b", "/a#b", "/é", "/{name}", "/{type}/{type}", &long]
        {
            assert!(bad.parse::<HttpPath>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_type_is_one_part_of_the_path_whatever_it_holds() {
        let path = HttpPath::default();
        assert_eq!(path.of("order.paid"), "/order.paid");
        assert_eq!(path.of("a/b?c#d e%é"), "/a%2Fb%3Fc%23d%20e%25%C3%A9");
        assert_eq!(path.of("{type}"), "/%7Btype%7D");
    }
}
