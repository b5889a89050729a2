//! What stands in a value for something that is elsewhere: `${NAME}` for a variable of the
//! environment, `${file:PATH}` for what a file holds, `${credential:NAME}` for a credential of
//! the service manager. So no secret has to be in the file of settings itself.

use std::env::VarError;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use event_host_core::event::quoted;

/// Where variables of the environment come from.
pub(super) type Environment<'a> = dyn Fn(&str) -> Result<String, VarError> + 'a;

/// The most that a file may hold, in bytes. A secret is far smaller; a database is not.
const MOST_BYTES: u64 = 64 << 10;

/// The variable in which the service manager names the folder of the credentials.
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";

/// Where the things are that stand in values.
#[derive(Clone, Copy)]
pub(super) struct Variables<'a> {
    pub(super) environment: &'a Environment<'a>,
    /// Where relative paths of files begin.
    pub(super) directory: &'a Path,
}

impl Variables<'_> {
    /// Replaces each `${…}`; `$${` stands for `${`. What is put in is not looked into again.
    /// An error names the variable or the file, never what it holds.
    pub(super) fn expand(self, text: &str) -> Result<String, String> {
        let mut expanded = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(dollar) = rest.find('$') {
            expanded.push_str(&rest[..dollar]);
            rest = &rest[dollar..];
            if let Some(after) = rest.strip_prefix("$${") {
                expanded.push_str("${");
                rest = after;
            } else if let Some(after) = rest.strip_prefix("${") {
                let Some((name, after)) = after.split_once('}') else {
                    return Err("`${` has no `}`: write `${NAME}` for a variable of the environment, or `$${` for these two characters".to_owned());
                };
                expanded.push_str(&self.value(name)?);
                rest = after;
            } else {
                expanded.push('$');
                rest = &rest[1..];
            }
        }
        expanded.push_str(rest);
        Ok(expanded)
    }

    fn value(self, name: &str) -> Result<String, String> {
        match name.split_once(':') {
            Some(("file", path)) => self.file(path),
            Some(("credential", name)) => self.credential(name),
            Some((kind, _)) => Err(format!(
                "{} stands for nothing: there are `${{NAME}}`, `${{file:PATH}}` and `${{credential:NAME}}`; write `$${{` for a literal `${{`, and {} is no kind of its own",
                quoted(&format!("${{{name}}}")),
                quoted(kind)
            )),
            None => self.variable(name),
        }
    }

    fn variable(self, name: &str) -> Result<String, String> {
        let well_formed = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !well_formed {
            return Err(format!(
                "{} names no variable: use letters, digits and `_`, or write `$${{` for a literal `${{`",
                quoted(&format!("${{{name}}}"))
            ));
        }
        (self.environment)(name).map_err(|e| match e {
            VarError::NotPresent => {
                format!("the environment has no variable `{name}`: set it before the host starts")
            }
            VarError::NotUnicode(_) => format!("the variable `{name}` is not UTF-8"),
        })
    }

    fn file(self, path: &str) -> Result<String, String> {
        if path.is_empty() {
            return Err(
                "`${file:}` names no file: write one such as `${file:/run/secrets/github}`"
                    .to_owned(),
            );
        }
        contents(&self.directory.join(path)).map_err(|why| {
            format!("the file {} {why}", quoted(&self.directory.join(path).display().to_string()))
        })
    }

    fn credential(self, name: &str) -> Result<String, String> {
        if name.is_empty() || name.contains('/') || name.starts_with('.') {
            return Err(format!(
                "{} names no credential: write the name that `LoadCredential=` gives it",
                quoted(&format!("${{credential:{name}}}"))
            ));
        }
        let folder = (self.environment)(CREDENTIALS).map_err(|_| {
            format!(
                "there is no credential {}, because the environment has no `{CREDENTIALS}`: the service manager sets it, systemd for a unit with `LoadCredential=`",
                quoted(name)
            )
        })?;
        contents(&Path::new(&folder).join(name))
            .map_err(|why| format!("the credential {} {why}", quoted(name)))
    }
}

/// What a file holds, without the newline at its end, which editors and `echo` put there. An
/// error is what follows the file's name.
fn contents(path: &Path) -> Result<String, String> {
    let cannot = |error: &io::Error| match error.kind() {
        io::ErrorKind::NotFound => "is not there: create it before the host starts".to_owned(),
        io::ErrorKind::PermissionDenied => {
            "may not be read by the host's user: give it the right to".to_owned()
        }
        _ => format!("cannot be read: {error}"),
    };
    // Opening what is no file, such as a pipe, could wait for ever.
    let is_file = path.metadata().map_err(|error| cannot(&error))?.is_file();
    if !is_file {
        return Err("is no regular file: name one that holds the value".to_owned());
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| cannot(&error))?;
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(|error| cannot(&error))?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(format!("holds more than {} KiB, too much for a value", MOST_BYTES >> 10));
    }
    let mut text = String::from_utf8(bytes)
        .map_err(|_| "is not UTF-8: write what is no text in base64 or hex digits".to_owned())?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn environment(name: &str) -> Result<String, VarError> {
        match name {
            "HOME_1" => Ok("a${NOT}b".to_owned()),
            "EMPTY" => Ok(String::new()),
            _ => Err(VarError::NotPresent),
        }
    }

    #[test]
    fn variables_are_replaced_once_and_dollars_stay() {
        for (text, expected) in [
            ("", ""),
            ("no variable", "no variable"),
            ("${HOME_1}", "a${NOT}b"),
            ("x${EMPTY}y${EMPTY}", "xy"),
            ("$${HOME_1}", "${HOME_1}"),
            ("$$${HOME_1}", "$${HOME_1}"),
            ("5$ $x $$ $", "5$ $x $$ $"),
            ("ü${EMPTY}ü$ü", "üü$ü"),
        ] {
            assert_eq!(expand(text, &environment).as_deref(), Ok(expected), "{text}");
        }
        for text in ["${", "a${HOME_1", "${}", "${1A}", "${A B}", "${A:-b}", "${ü}", "${MISSING}"]
        {
            assert!(expand(text, &environment).is_err(), "{text}");
        }
    }

    fn expand(text: &str, environment: &Environment<'_>) -> Result<String, String> {
        Variables { environment, directory: Path::new("") }.expand(text)
    }

    #[test]
    fn files_and_credentials_are_read_and_named_where_they_cannot_be() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        for (name, bytes) in [
            ("secret", &b"hunter2\n"[..]),
            ("windows", b"hunter2\r\n"),
            ("two", b"hunter2\n\n"),
            ("plain", b" ${HOME_1} "),
            ("empty", b""),
            ("binary", b"hunter2\xff"),
            ("large", &[b'x'; (64 << 10) + 1]),
        ] {
            fs::write(path(name), bytes).unwrap();
        }
        fs::create_dir(path("folder")).unwrap();
        let with_credentials = |name: &str| match name {
            CREDENTIALS => Ok(folder.path().display().to_string()),
            other => environment(other),
        };
        let variables = Variables { environment: &with_credentials, directory: folder.path() };
        let absolute = format!("${{file:{}}}", path("secret"));
        for (text, expected) in [
            ("${file:secret}", "hunter2"),
            (&absolute, "hunter2"),
            ("${file:./windows}", "hunter2"),
            ("a ${file:two} b", "a hunter2\n b"),
            ("${file:plain}", " ${HOME_1} "),
            ("${file:empty}", ""),
            ("${credential:secret}/${HOME_1}", "hunter2/a${NOT}b"),
            ("$${file:secret}", "${file:secret}"),
        ] {
            assert_eq!(variables.expand(text).as_deref(), Ok(expected), "{text}");
        }
        for (text, expected) in [
            ("${file:}", "names no file: write one such as"),
            ("${file:missing}", "missing` is not there: create it"),
            ("${file:folder}", "folder` is no regular file"),
            ("${file:binary}", "binary` is not UTF-8"),
            ("${file:large}", "large` holds more than 64 KiB"),
            ("${credential:missing}", "the credential `missing` is not there"),
            ("${credential:}", "names no credential"),
            ("${credential:../secret}", "names no credential"),
            ("${credential:..}", "names no credential"),
            ("${secret:x}", "there are `${NAME}`, `${file:PATH}` and `${credential:NAME}`"),
            ("${HOME_1:-x}", "`$${` for a literal `${`"),
        ] {
            let why = variables.expand(text).unwrap_err();
            assert!(why.contains(expected) && !why.contains("hunter2"), "{text}: {why}");
        }
        let without = Variables { environment: &environment, directory: folder.path() };
        let why = without.expand("${credential:secret}").unwrap_err();
        assert!(why.contains("no `CREDENTIALS_DIRECTORY`"), "{why}");
    }
}
