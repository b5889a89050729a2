//! Keeps the passwords of database URLs out of what the command line says.
//!
//! A URL that is given where it belongs is a type that never shows its password.
//! But one behind a misspelt option, or in the place of a file, comes back in the
//! sentence that refuses it.

use std::borrow::Cow;

/// A message without the passwords of the program's arguments.
pub(crate) fn hidden(message: &str) -> Cow<'_, str> {
    let arguments = std::env::args_os().map(|argument| argument.to_string_lossy().into_owned());
    hidden_of(message, arguments)
}

fn hidden_of(message: &str, arguments: impl Iterator<Item = String>) -> Cow<'_, str> {
    let mut message = Cow::Borrowed(message);
    for argument in arguments {
        if let Some(secret) = Secret::find(&argument) {
            while let Some(hidden) = secret.hidden_once(&message) {
                message = Cow::Owned(hidden);
            }
        }
    }
    message
}

/// The part of an argument that begins with a password.
struct Secret<'a> {
    /// What comes before it, so that cut or escaped copies are found too.
    before: &'a str,
    /// The password, and all behind it.
    rest: &'a str,
}

impl<'a> Secret<'a> {
    fn find(argument: &'a str) -> Option<Self> {
        // ASCII alone changes its case, so that offsets stay true.
        let lower = argument.to_ascii_lowercase();
        let start = lower.find("postgres://").or_else(|| lower.find("postgresql://"))?;
        let credentials = start + lower[start..].find("://")? + "://".len();
        let in_credentials = argument[credentials..]
            .rfind('@')
            .and_then(|at| argument[credentials..credentials + at].find(':'))
            .map(|colon| credentials + colon + 1);
        let in_query = lower[credentials..]
            .find("password=")
            .map(|name| credentials + name + "password=".len());
        let secret = [in_credentials, in_query].into_iter().flatten().min()?;
        let (before, rest) = argument.split_at(secret);
        let before = &before[start..];
        (!rest.is_empty()).then_some(Self { before, rest })
    }

    /// The message with one more copy hidden: just the copy where it is whole,
    /// and else the rest of its line.
    fn hidden_once(&self, message: &str) -> Option<String> {
        const HIDDEN: &str = "…";
        let at = message.match_indices(self.before).find_map(|(at, before)| {
            let secret = at + before.len();
            (!message[secret..].starts_with(HIDDEN)).then_some(secret)
        })?;
        let (kept, tail) = message.split_at(at);
        let tail = tail
            .strip_prefix(self.rest)
            .or_else(|| tail.find('\n').map(|end| &tail[end..]))
            .unwrap_or_default();
        Some(format!("{kept}{HIDDEN}{tail}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hide(message: &str, argument: &str) -> String {
        hidden_of(message, [argument.to_owned()].into_iter()).into_owned()
    }

    #[test]
    fn a_password_among_the_arguments_is_never_repeated() {
        for url in [
            "postgres://u:hunter2@h/d",
            "postgresql://u:hunter2@h/d?sslmode=require",
            "POSTGRES://u:hunter2@h/d",
            "postgres://u:hunter2 with a blank@h/d",
            "postgres://u:p@ss/hunter2?#:@h/d",
            "postgres://:hunter2@h/d",
            "postgres://h/d?password=hunter2",
            "postgres://u@h/d?user=u&password=hunter2&x hunter2",
            "postgres://u:%68unter2@h/d?sslpassword=hunter2",
            "--databse=postgres://u:hunter2@h/d",
            "postgres://ü:hunter2@h/d",
        ] {
            for message in [
                format!("unexpected argument '{url}' found\n\nUsage: host"),
                format!("{url}: {url}: there is no such file"),
                format!("{}`", &url[..url.find("hunter2").unwrap() + 4]),
            ] {
                let hidden = hide(&message, url);
                assert!(!hidden.contains("hunt"), "{hidden}");
                assert!(hidden.contains('…'), "{hidden}");
            }
        }
        assert_eq!(
            hide("'postgres://u:s@h/d' found\n\nUsage", "postgres://u:s@h/d"),
            "'postgres://u:…' found\n\nUsage"
        );
    }

    #[test]
    fn what_holds_no_password_stays() {
        for (message, argument) in [
            ("cannot reach postgres://u@h:1/d", "postgres://u@h:1/d"),
            ("a:b@c", "a:b@c"),
            ("sqlite:a:b@c.db", "sqlite:a:b@c.db"),
            ("postgres://u:s@h/d", "other"),
        ] {
            assert_eq!(hide(message, argument), message);
        }
    }
}
