//! New handlers: a folder made from a template, and its tables in the settings file.

mod settings;
mod template;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use settings::Settings;
pub use template::{EVENT, Template, UnknownTemplate};

use crate::language::Language;
use crate::sdk::{self, SdkError};
use event_host_core::event::HandlerName;

/// A handler to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Project {
    /// Its name, which its folder has too.
    pub name: HandlerName,
    /// The language.
    pub language: Language,
    /// What it begins with.
    pub template: Template,
}

/// Why no handler was made.
#[derive(Debug, thiserror::Error)]
pub enum NewError {
    /// A language without this template.
    #[error("{} has no template {template}: {why}; it has {}", language.title(), named(*language))]
    NoTemplate {
        /// The language.
        language: Language,
        /// The template.
        template: Template,
        /// Why there is none.
        why: &'static str,
    },
    /// A name that tools of the language refuse.
    #[error("the name {name} has a dot, and the name of a package in Rust cannot: use `_` or `-`")]
    Name {
        /// The name.
        name: HandlerName,
    },
    /// A folder with something in it.
    #[error("{} is there already, and is not empty: use another name, or remove it", folder.display())]
    NotEmpty {
        /// The folder.
        folder: PathBuf,
    },
    /// A settings file to which the handler cannot be added.
    #[error("{}: {why}", file.display())]
    Settings {
        /// The file.
        file: PathBuf,
        /// Why not.
        why: String,
    },
    /// A file or a folder that cannot be read or written.
    #[error("cannot {doing} {}: {why}", path.display())]
    File {
        /// What was done.
        doing: &'static str,
        /// The file or the folder.
        path: PathBuf,
        /// Why not.
        why: io::Error,
    },
    /// An SDK that cannot be written.
    #[error(transparent)]
    Sdk(#[from] SdkError),
}

impl NewError {
    fn file(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |why| Self::File { doing, path, why }
    }
}

fn named(language: Language) -> String {
    Template::of(language).map(Template::name).collect::<Vec<_>>().join(" and ")
}

/// A handler that was made.
#[derive(Debug)]
pub struct Made {
    /// Its folder.
    pub folder: PathBuf,
    /// The files in it, but for those of the SDK, with their text.
    pub files: BTreeMap<PathBuf, String>,
}

impl Made {
    /// The commands that the project's README tells.
    #[must_use]
    pub fn commands(&self) -> Vec<&str> {
        self.files.get(Path::new("README.md")).map_or_else(Vec::new, |text| commands(text))
    }
}

/// The commands in the first console block of a README.
fn commands(readme: &str) -> Vec<&str> {
    let block = readme.split("```console\n").nth(1).and_then(|rest| rest.split("```").next());
    block.unwrap_or_default().lines().filter_map(|line| line.strip_prefix("$ ")).collect()
}

impl Project {
    /// Makes the project's folder beside a settings file, and adds its tables to the file,
    /// which is created if it is missing. Both are done, or neither.
    ///
    /// # Errors
    /// When the language has no such template, the folder or the handler exists, or
    /// something cannot be written.
    pub fn make(&self, settings: &Path) -> Result<Made, NewError> {
        if let Some(why) = self.template.missing_in(self.language) {
            let (language, template) = (self.language, self.template);
            return Err(NewError::NoTemplate { language, template, why });
        }
        if self.language == Language::Rust && self.name.as_str().contains('.') {
            return Err(NewError::Name { name: self.name.clone() });
        }
        let root = match settings.parent() {
            Some(root) if root != Path::new("") => root,
            _ => Path::new("."),
        };
        let folder = settings.parent().unwrap_or(Path::new("")).join(self.name.as_str());
        refuse_occupied(&folder)?;
        let settings = Settings::with(settings, self)?;
        fs::create_dir_all(root).map_err(NewError::file("create", root))?;
        // Beside the folder, so that one rename puts all of it in place.
        let whole = tempfile::Builder::new()
            .prefix(".host-new-")
            .tempdir_in(root)
            .map_err(NewError::file("write to", root))?;
        let top = whole.path().join("project");
        let files = self.template.files(self.language, &self.name);
        for (path, text) in &files {
            let file = top.join(path);
            let place = file.parent().unwrap_or(&top);
            fs::create_dir_all(place).map_err(NewError::file("create", place))?;
            fs::write(&file, text).map_err(NewError::file("write", &file))?;
        }
        if self.template.takes_sdk(self.language) {
            sdk::write(self.language, &top.join(sdk::FOLDER))?;
        }
        fs::rename(&top, &folder).map_err(|why| match why.kind() {
            ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists => {
                NewError::NotEmpty { folder: folder.clone() }
            }
            _ => NewError::file("create", &folder)(why),
        })?;
        if let Err(why) = settings.write() {
            // Nothing in it is anybody's yet.
            fs::remove_dir_all(&folder).map_err(NewError::file("remove", &folder))?;
            return Err(why);
        }
        Ok(Made { folder, files })
    }
}

fn refuse_occupied(folder: &Path) -> Result<(), NewError> {
    match fs::read_dir(folder) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(NewError::NotEmpty { folder: folder.to_owned() }),
        },
        Err(why) if why.kind() == ErrorKind::NotFound => Ok(()),
        Err(why) => Err(NewError::file("create", folder)(why)),
    }
}

#[cfg(test)]
mod tests;
