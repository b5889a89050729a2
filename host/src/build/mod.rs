//! Building handlers: from the sources of a language to the file that `component` names.
//!
//! A build has three steps: [`make`] runs the recipe or the command of a [`Job`] and
//! leaves the component in the job's own folder; the caller loads it as a host would; and
//! [`Made::install`] puts it in place. Until then the old file stays, so a host that runs
//! it goes on. Nothing is installed, and nothing is fetched.

mod compilers;
mod inputs;
mod process;
mod recipes;
mod tools;

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

pub use inputs::{Inputs, Look};
pub use process::{Output, RunError, kill_all};
pub use tools::{Found, Missing};

use crate::config::{BuildBy, BuildSettings};
use crate::language::Language;
use crate::sdk;
use event_host_core::event::HandlerName;

/// The folder, in the folder of the sources, for what lies between source and component.
const WORK: &str = ".host";

/// How often a build looks whether another one of the same handler has ended.
const LOCK_POLL: Duration = Duration::from_millis(100);

/// Why nothing was built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A tool is not there.
    #[error("needs {0}")]
    Missing(Missing),
    /// A program failed, and has said why.
    #[error("{why}{}", hint.map(|hint| format!("; {hint}")).unwrap_or_default())]
    Run {
        /// How it ended.
        why: RunError,
        /// What often helps.
        hint: Option<&'static str>,
    },
    /// The folder of the sources is not there.
    #[error("its folder {} is not there: `dir` in its table `build` names it", .0.display())]
    NoFolder(PathBuf),
    /// The source is not there.
    #[error("{} has no {wanted}", folder.display())]
    NoSource {
        /// The folder of the sources.
        folder: PathBuf,
        /// What is looked for.
        wanted: String,
    },
    /// The project makes no library.
    #[error("{} makes no WebAssembly library: it needs `crate-type = [\"cdylib\"]` in its table `lib`", .0.display())]
    NoLibrary(PathBuf),
    /// A bundle exports no handler, or two.
    #[error(
        "{} exports {}: export one of them",
        file.display(),
        if *both { "both `handler` and `batchHandler`" } else { "neither `handler` nor `batchHandler`" }
    )]
    Exports {
        /// The source.
        file: PathBuf,
        /// Whether it exports both.
        both: bool,
    },
    /// WebAssembly text is wrong.
    #[error("{0}")]
    Text(String),
    /// All ended well, and nothing was made.
    #[error("{} is not there after the build: {hint}", file.display())]
    NoOutput {
        /// The file that was expected.
        file: PathBuf,
        /// What would make it.
        hint: &'static str,
    },
    /// A pattern of files is none.
    #[error("`watch` holds `{pattern}`, which is no pattern of files: {why}")]
    Pattern {
        /// As it was given.
        pattern: String,
        /// What is wrong with it.
        why: String,
    },
    /// A file cannot be read or written.
    #[error("cannot {doing} {}: {why}", path.display())]
    File {
        /// What was tried.
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system says.
        why: io::Error,
    },
    /// The SDK cannot be written.
    #[error("{0}")]
    Sdk(#[from] sdk::SdkError),
    /// The build was cancelled.
    #[error("cancelled")]
    Cancelled,
}

impl BuildError {
    fn file(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |why| Self::File { doing, path, why }
    }
}

impl From<RunError> for BuildError {
    fn from(why: RunError) -> Self {
        match why {
            RunError::Cancelled => Self::Cancelled,
            why => Self::Run { why, hint: None },
        }
    }
}

/// What is to be built, with absolute paths.
#[derive(Debug, Clone)]
pub struct Job {
    name: HandlerName,
    by: BuildBy,
    folder: PathBuf,
    root: PathBuf,
    output: Option<PathBuf>,
    component: PathBuf,
}

/// What a build made, and has not put in place yet.
#[derive(Debug)]
pub struct Made {
    /// The file that has the component.
    pub file: PathBuf,
    /// How long it took.
    pub took: Duration,
    component: PathBuf,
    /// The component before, where a command wrote over it.
    before: Option<PathBuf>,
    is_settled: bool,
    /// Held until the component is in place.
    _lock: File,
}

impl Job {
    /// What a handler's settings say.
    ///
    /// # Errors
    /// When the current folder is unknown, by which paths are relative.
    pub fn new(name: &HandlerName, settings: &BuildSettings) -> Result<Self, BuildError> {
        let absolute =
            |path: &Path| std::path::absolute(path).map_err(BuildError::file("find", path));
        let root = match settings.root.as_path() {
            root if root == Path::new("") => Path::new("."),
            root => root,
        };
        let folder = match settings.folder.as_path() {
            folder if folder == Path::new("") => Path::new("."),
            folder => folder,
        };
        Ok(Self {
            name: name.clone(),
            by: settings.by.clone(),
            folder: plain(&absolute(folder)?),
            root: plain(&absolute(root)?),
            output: settings.output.as_deref().map(absolute).transpose()?,
            component: absolute(&settings.component)?,
        })
    }

    /// A path as it is seen from the folder of the settings file.
    #[must_use]
    pub fn relative<'a>(&self, path: &'a Path) -> &'a Path {
        path.strip_prefix(&self.root).unwrap_or(path)
    }

    fn work(&self) -> PathBuf {
        self.folder.join(WORK)
    }

    fn sdk_folder(&self) -> PathBuf {
        self.folder.join(sdk::FOLDER)
    }

    /// Where the command leaves the component.
    fn command_output(&self) -> PathBuf {
        self.output.clone().unwrap_or_else(|| self.component.clone())
    }

    /// The SDK that npm installed, for the project or a folder above.
    fn package(&self) -> Option<PathBuf> {
        let package = |folder: &Path| folder.join("node_modules/@event-host/sdk");
        self.folder.ancestors().map(package).find(|package| package.is_dir())
    }

    /// Whether pip installed the SDK into the project's environment.
    fn has_python_package(&self) -> bool {
        let libraries = fs::read_dir(self.folder.join(".venv/lib"));
        libraries
            .into_iter()
            .flatten()
            .flatten()
            .any(|entry| entry.path().join("site-packages/event_host").is_dir())
    }

    /// Whether the project takes the SDK from [`sdk::FOLDER`], where it may be missing.
    fn takes_vendored_sdk(&self, language: Language) -> bool {
        // A project may have its SDK elsewhere.
        let names = |manifest: &str| {
            let text = fs::read_to_string(self.folder.join(manifest)).unwrap_or_default();
            let folder = sdk::FOLDER;
            [format!("\"{folder}\""), format!("./{folder}")].iter().any(|way| text.contains(way))
        };
        match language {
            Language::Rust => names("Cargo.toml"),
            Language::Go => names("go.mod"),
            Language::Zig => names("build.zig.zon"),
            Language::Js | Language::Ts => self.package().is_none(),
            Language::Python => !self.has_python_package(),
            Language::C | Language::Cpp => true,
            Language::Wat => false,
        }
    }
}

/// A path without `.` and, as they are written, without `..`.
fn plain(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut plain, part| {
        match part {
            std::path::Component::CurDir => {}
            std::path::Component::ParentDir => {
                plain.pop();
            }
            part => plain.push(part),
        }
        plain
    })
}

/// Runs a recipe or a command. `note` is told what people should know.
///
/// # Errors
/// When a tool is missing, a program fails, or nothing comes out. The old component is
/// there as before.
pub async fn make(
    job: &Job,
    output: &Output,
    cancelled: &CancellationToken,
    note: &(dyn Fn(&str) + Sync),
) -> Result<Made, BuildError> {
    let begun = Instant::now();
    if !job.folder.is_dir() {
        return Err(BuildError::NoFolder(job.folder.clone()));
    }
    let lock = lock(job, cancelled, note).await?;
    if let BuildBy::Recipe(language) = job.by {
        look_after_sdk(job, language, note)?;
    }
    let before = keep(job)?;
    let mut made = Made {
        file: PathBuf::new(),
        took: Duration::ZERO,
        component: job.component.clone(),
        before,
        is_settled: false,
        _lock: lock,
    };
    made.file = recipes::make(job, output, cancelled).await?;
    if !made.file.is_file() {
        return Err(BuildError::NoOutput {
            file: made.file.clone(),
            hint: "the command ended well, and must leave the component there; `output` names another file",
        });
    }
    made.took = begun.elapsed();
    Ok(made)
}

/// Has builds of one handler come one after the other, also those of other processes.
async fn lock(
    job: &Job,
    cancelled: &CancellationToken,
    note: &(dyn Fn(&str) + Sync),
) -> Result<File, BuildError> {
    let work = job.work();
    fs::create_dir_all(&work).map_err(BuildError::file("create", &work))?;
    let ignore = work.join(".gitignore");
    if !ignore.exists() {
        fs::write(&ignore, "*\n").map_err(BuildError::file("write", &ignore))?;
    }
    let path = work.join("lock");
    let file = File::options().create(true).append(true).open(&path);
    let file = file.map_err(BuildError::file("open", &path))?;
    let mut is_said = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => {
                if !std::mem::replace(&mut is_said, true) {
                    note("another build of it is under way: waiting for its end");
                }
                tokio::select! {
                    () = cancelled.cancelled() => return Err(BuildError::Cancelled),
                    () = tokio::time::sleep(LOCK_POLL) => {}
                }
            }
            Err(TryLockError::Error(why)) => return Err(BuildError::file("lock", &path)(why)),
        }
    }
}

/// Writes the SDK where the project wants it and has none, and says so where it is of
/// another version.
fn look_after_sdk(
    job: &Job,
    language: Language,
    note: &(dyn Fn(&str) + Sync),
) -> Result<(), BuildError> {
    let folder = job.sdk_folder();
    let (shown, version) = (folder.display(), sdk::VERSION);
    match sdk::look(language, &folder)? {
        sdk::Found::Missing if job.takes_vendored_sdk(language) => {
            sdk::write(language, &folder)?;
            note(&format!("wrote {shown}, the {} SDK {version}: check it in", language.title()));
        }
        sdk::Found::Other(other) => note(&format!(
            "{shown} is the SDK of another host, of version {other}, and this one has {version}: it is used as it is; remove the folder, and the next build writes the SDK of this host"
        )),
        sdk::Found::Unknown if language != Language::Wat => note(&format!(
            "{shown} has no {} that says which SDK it is: it is used as it is",
            sdk::RECORD
        )),
        sdk::Found::Missing | sdk::Found::Same | sdk::Found::Unknown => {}
    }
    Ok(())
}

/// Keeps a copy of the component that a command may write over.
fn keep(job: &Job) -> Result<Option<PathBuf>, BuildError> {
    let writes_over =
        matches!(job.by, BuildBy::Command(_)) && job.command_output() == job.component;
    if !writes_over || !job.component.is_file() {
        return Ok(None);
    }
    let copy = job.work().join("before.wasm");
    fs::copy(&job.component, &copy).map_err(BuildError::file("keep a copy of", &job.component))?;
    Ok(Some(copy))
}

impl Made {
    /// Puts the component in place of the old one, at once; gives its size in bytes.
    ///
    /// # Errors
    /// When it cannot be written there. Then the old one is there as before.
    pub fn install(mut self) -> Result<u64, BuildError> {
        let size = fs::metadata(&self.file).map_err(BuildError::file("read", &self.file))?.len();
        if self.file != self.component {
            self.replace()?;
        }
        self.is_settled = true;
        Ok(size)
    }

    fn replace(&self) -> Result<(), BuildError> {
        let parent = self.component.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(parent).map_err(BuildError::file("create", parent))?;
        // Beside it, so that one rename puts it in place, whatever the file systems are.
        let whole = tempfile::Builder::new()
            .prefix(".host-")
            .tempfile_in(parent)
            .map_err(BuildError::file("write to", parent))?;
        // Together with the permissions, which a temporary file has too few of.
        fs::copy(&self.file, whole.path()).map_err(BuildError::file("copy", &self.file))?;
        whole
            .persist(&self.component)
            .map_err(|why| BuildError::file("replace", &self.component)(why.error))?;
        Ok(())
    }
}

impl Drop for Made {
    /// Brings back what a command wrote over, if that is not to stay.
    fn drop(&mut self) {
        if self.is_settled {
            return;
        }
        let Some(before) = &self.before else { return };
        let is_same = || Some(fs::read(before).ok()? == fs::read(&self.component).ok()?);
        if is_same() != Some(true)
            && let Err(why) = fs::rename(before, &self.component)
        {
            tracing::error!(
                "the component {} from before a build that failed lies at {}, and cannot be put back: {why}",
                self.component.display(),
                before.display()
            );
        }
    }
}

/// One tool of a language, for `--doctor`.
#[derive(Debug)]
pub struct Need {
    /// Its name.
    pub tool: &'static str,
    /// The versions that are fine, in words.
    pub wanted: String,
    /// Its version and where it is, or what is there instead.
    pub found: Result<(String, String), String>,
    /// The line that installs it, if it is missing.
    pub install: String,
}

/// What a language needs, and what of it is there for sources in `folder`, which may use
/// what is in the folders above it, up to `root`.
pub async fn needs(language: Language, folder: &Path, root: &Path) -> Vec<Need> {
    let places = tools::Places::of(folder, root);
    let needs = compilers::needs(language, &places).await;
    needs
        .into_iter()
        .map(|(tool, wanted, found)| {
            let install = found.as_ref().err().map(|missing| missing.install().to_owned());
            let found = match &found {
                Ok(found) => Ok((found.version.clone(), found.to_string())),
                Err(missing) => Err(missing.instead().to_owned()),
            };
            Need { tool, wanted, found, install: install.unwrap_or_default() }
        })
        .collect()
}

#[cfg(test)]
mod tests;
