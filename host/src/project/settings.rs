//! Adds a handler to a settings file, and keeps its comments and its order.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use toml_edit::{Array, DocumentMut, Item, Table, value};

use super::{NewError, Project};

/// What a file begins with that was not there.
const NEW: &str = "database = \"sqlite:host.db\"\n";

/// A settings file with the new handler, not written yet.
#[derive(Debug)]
pub(super) struct Settings {
    /// The file itself, where the path is a link.
    file: PathBuf,
    text: String,
    is_new: bool,
}

impl Settings {
    /// Reads the file, and adds the project's tables.
    ///
    /// # Errors
    /// When it cannot be read, is no TOML, or has such a handler already.
    pub(super) fn with(file: &Path, project: &Project) -> Result<Self, NewError> {
        let (text, is_new) = match fs::read_to_string(file) {
            Ok(text) => (text, false),
            Err(why) if why.kind() == ErrorKind::NotFound => (NEW.to_owned(), true),
            Err(why) => return Err(NewError::file("read", file)(why)),
        };
        let target = if is_new {
            file.to_owned()
        } else {
            fs::canonicalize(file).map_err(NewError::file("read", file))?
        };
        let text = added(&text, project)
            .map_err(|why| NewError::Settings { file: file.to_owned(), why })?;
        Ok(Self { file: target, text, is_new })
    }

    /// Writes it in one step.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn write(self) -> Result<(), NewError> {
        let failed = || NewError::file("write", &self.file);
        let folder = match self.file.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let mut new = tempfile::Builder::new();
        if !self.is_new {
            let mode = fs::metadata(&self.file).map_err(failed())?.permissions();
            new.permissions(mode);
        } else {
            // As any editor would make it.
            use std::os::unix::fs::PermissionsExt as _;
            new.permissions(fs::Permissions::from_mode(0o666));
        }
        let mut new = new.tempfile_in(folder).map_err(failed())?;
        new.write_all(self.text.as_bytes()).map_err(failed())?;
        if self.is_new {
            // Somebody else may have made it meanwhile.
            new.persist_noclobber(&self.file).map_err(|why| failed()(why.error))?;
        } else {
            new.persist(&self.file).map_err(|why| failed()(why.error))?;
        }
        Ok(())
    }
}

/// The text of a settings file with the project's tables.
fn added(text: &str, project: &Project) -> Result<String, String> {
    let name = project.name.as_str();
    let mut document: DocumentMut =
        text.parse().map_err(|why: toml_edit::TomlError| why.to_string().trim_end().to_owned())?;
    let handlers = document.entry("handlers").or_insert_with(|| {
        let mut handlers = Table::new();
        handlers.set_implicit(true);
        Item::Table(handlers)
    });
    let handlers = handlers.as_table_mut().filter(|table| !table.is_dotted()).ok_or_else(|| {
        format!(
            "`handlers` is not written as tables such as [handlers.{name}]: write it so, and it can be added to"
        )
    })?;
    if handlers.contains_key(name) {
        return Err(format!("there is a handler {name} already: give the new one another name"));
    }
    let has_group = |item: &Item| item.get("group").and_then(Item::as_str) == Some(name);
    if let Some((other, _)) = handlers.iter().find(|(_, item)| has_group(item)) {
        return Err(format!(
            "the handler {other} is in the group {name}, which the new one would be in too: give the new one another name"
        ));
    }
    handlers.insert(name, Item::Table(tables(project)?));
    let text = with_last_words(text, document.to_string(), document.trailing().as_str());
    // A file may say the same in many ways, of which not all can be added to.
    match text.parse::<DocumentMut>() {
        Ok(again) if again["handlers"][name]["component"].is_str() => Ok(text),
        _ => Err(format!("[handlers.{name}] cannot be added to what `handlers` is here")),
    }
}

/// The new text, in which comments that ended the old one stay before what comes after it.
fn with_last_words(old: &str, new: String, last_words: Option<&str>) -> String {
    let last_words = last_words.unwrap_or_default();
    let parts = old.strip_suffix(last_words).zip(new.strip_suffix(last_words));
    match parts.and_then(|(before, all)| all.strip_prefix(before)) {
        Some(added) => format!("{old}{added}"),
        // It was added between others, and the last words still end the file.
        None => new,
    }
}

/// The tables of a handler, each with an empty line before it.
fn tables(project: &Project) -> Result<Table, String> {
    let name = project.name.as_str();
    let more: DocumentMut =
        project.template.settings().parse().map_err(|why: toml_edit::TomlError| why.to_string())?;
    let mut handler = headed();
    handler.insert("component", value(format!("{name}/{name}.wasm")));
    for (key, item) in more.iter().filter(|(_, item)| item.is_value()) {
        handler.insert(key, item.clone());
    }
    let mut build = headed();
    match project.template.command(project.language) {
        Some(command) => {
            let mut words: Array = command.into_iter().collect();
            words.fmt();
            build.insert("command", value(words));
        }
        None => {
            build.insert("lang", value(project.language.name()));
        }
    }
    build.insert("dir", value(name));
    handler.insert("build", Item::Table(build));
    for (key, item) in more.iter().filter(|(_, item)| item.is_table()) {
        let mut table = headed();
        for (key, item) in item.as_table().into_iter().flat_map(Table::iter) {
            table.insert(key, item.clone());
        }
        handler.insert(key, Item::Table(table));
    }
    Ok(handler)
}

fn headed() -> Table {
    let mut table = Table::new();
    table.decor_mut().set_prefix("\n");
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language::Language;
    use crate::project::Template;

    fn project(template: Template) -> Project {
        Project { name: "orders".parse().unwrap(), language: Language::Go, template }
    }

    const ORDERS: &str = "
[handlers.orders]
component = \"orders/orders.wasm\"
subscribe = [\"order.placed\"]

[handlers.orders.build]
lang = \"go\"
dir = \"orders\"
";

    #[test]
    fn a_handler_is_added_and_all_that_was_there_stays_as_it_was() {
        let before = "# Ours.\ndatabase = 'sqlite:shop.db' # one file\n\n[handlers.mail] # first\ncomponent = \"mail.wasm\"\n  subscribe = [ \"*\" ]\n";
        let after = added(before, &project(Template::Hello)).unwrap();
        assert_eq!(after, format!("{before}{ORDERS}"));

        // Comments at the end belong to what is before them.
        let last_words = format!("{before}# component = \"old.wasm\"\n");
        let after = added(&last_words, &project(Template::Hello)).unwrap();
        assert_eq!(after, format!("{last_words}{ORDERS}"));

        // Beside the other handlers, wherever these are.
        let tenants = "\n# Others.\n[tenants.acme]\nmemory = \"1GiB\"\n# The end.\n";
        let after = added(&format!("{before}{tenants}"), &project(Template::Hello)).unwrap();
        assert_eq!(after, format!("{before}{ORDERS}{tenants}"));
    }

    #[test]
    fn a_template_brings_its_tables() {
        let after = added(NEW, &project(Template::Batch)).unwrap();
        let batch = "\n[handlers.orders.batch]\nsize = 100\n";
        assert_eq!(after, format!("{NEW}{ORDERS}{batch}"));
    }

    #[test]
    fn what_cannot_be_added_to_is_refused_with_the_reason() {
        for (text, why) in [
            ("[handlers.orders]\ncomponent = \"a\"", "there is a handler orders already"),
            ("[handlers.a]\ngroup = \"orders\"", "the handler a is in the group orders"),
            ("handlers = 3", "`handlers` is not written as tables"),
            ("handlers = { a = { component = \"a\" } }", "`handlers` is not written as tables"),
            ("handlers.a.component = \"a\"", "`handlers` is not written as tables"),
            ("a = ", "TOML parse error at line 1"),
        ] {
            let refused = added(text, &project(Template::Hello)).unwrap_err();
            assert!(refused.starts_with(why), "{text}: {refused}");
        }
    }

    #[test]
    fn the_settings_of_every_template_are_tables_of_a_handler() {
        for template in Template::ALL {
            let handler = tables(&project(template)).unwrap();
            assert!(handler.contains_key("subscribe"), "{template}");
        }
    }
}
