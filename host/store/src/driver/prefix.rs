//! Prefixes as ranges, which an index can serve.

/// The least text above every text that begins with `prefix`; none if there is
/// no such text. A store compares UTF-8 byte by byte, which is the order of the
/// characters' numbers.
pub fn after_prefix(prefix: &str) -> Option<String> {
    let mut head = prefix.chars();
    while let Some(last) = head.next_back() {
        let next = match u32::from(last) + 1 {
            // No character has these numbers.
            0xD800 => Some('\u{E000}'),
            number => char::from_u32(number),
        };
        if let Some(next) = next {
            return Some(format!("{}{next}", head.as_str()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_above_all_that_begin_with_it_and_nothing_else() {
        assert_eq!(after_prefix("a"), Some("b".to_owned()));
        assert_eq!(after_prefix("order."), Some("order/".to_owned()));
        assert_eq!(after_prefix("a\u{10FFFF}"), Some("b".to_owned()));
        assert_eq!(after_prefix("\u{D7FF}"), Some("\u{E000}".to_owned()));
        assert_eq!(after_prefix("\u{7F}"), Some("\u{80}".to_owned()));
        assert_eq!(after_prefix(""), None);
        assert_eq!(after_prefix("\u{10FFFF}"), None);
    }
}
