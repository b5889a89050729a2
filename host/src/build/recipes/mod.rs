//! The recipes: how a component is made in each language that the host knows.
//!
//! A recipe first looks for its tools, then calls them with arguments, never through a
//! shell. Whatever lies between source and component goes into the folder [`Job::work`],
//! and no recipe fetches anything: what a project needs, its own tools install.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::compilers::{c_compiler, joined, no_rust_target, rust_target};
use super::process::{Output, RunError, Runner};
use super::tools::{self, Found, Places, Tool};
use super::{BuildError, Job};
use crate::config::BuildBy;
use crate::language::Language;
use crate::sdk;

/// Which of the contract's interfaces a handler exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Event,
    Batch,
}

impl Kind {
    const fn world(self) -> &'static str {
        match self {
            Self::Event => "event-handler",
            Self::Batch => "batch-event-handler",
        }
    }

    /// The folder of the C bindings.
    const fn bindings(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::Batch => "batch",
        }
    }
}

/// A build under way.
struct Recipe<'a> {
    job: &'a Job,
    places: Places,
    runner: Runner<'a>,
}

/// Makes a component; gives the file that has it.
pub(super) async fn make(
    job: &Job,
    output: &Output,
    cancelled: &tokio_util::sync::CancellationToken,
) -> Result<PathBuf, BuildError> {
    let places = Places::of(&job.folder, &job.root);
    let runner = Runner {
        folder: job.folder.clone(),
        path: places.path(),
        variables: Vec::new(),
        output,
        cancelled,
    };
    let mut recipe = Recipe { job, places, runner };
    match &job.by {
        BuildBy::Command(command) => recipe.command(command).await,
        BuildBy::Recipe(language) => match language {
            Language::Rust => recipe.rust().await,
            Language::Js | Language::Ts => recipe.javascript(*language).await,
            Language::Python => recipe.python().await,
            Language::Go => recipe.go().await,
            Language::C | Language::Cpp => recipe.c(*language).await,
            Language::Zig => recipe.zig().await,
            Language::Wat => recipe.wat(),
        },
    }
}

impl Recipe<'_> {
    async fn tool(&self, tool: &Tool) -> Result<Found, BuildError> {
        let found = self.places.find(tool).await;
        found.map_err(|missing| BuildError::Missing(missing.of_project(&self.job.folder)))
    }

    fn work(&self, name: &str) -> PathBuf {
        self.job.work().join(name)
    }

    async fn run(&self, tool: &Found, arguments: &[&OsStr]) -> Result<(), BuildError> {
        self.run_with(tool, arguments, &[]).await
    }

    async fn run_with(
        &self,
        tool: &Found,
        arguments: &[&OsStr],
        variables: &[(&str, &OsStr)],
    ) -> Result<(), BuildError> {
        Ok(self.runner.run(&words(tool, arguments), variables).await?)
    }

    /// The SDK's folder, if the project has it there.
    fn sdk(&self) -> Option<PathBuf> {
        Some(self.job.sdk_folder()).filter(|folder| folder.is_dir())
    }

    /// The first of these files of the project that is there.
    fn source(&self, names: &[&str]) -> Result<PathBuf, BuildError> {
        let files = names.iter().map(|name| self.job.folder.join(name));
        files.into_iter().find(|file| file.is_file()).ok_or_else(|| BuildError::NoSource {
            folder: self.job.folder.clone(),
            wanted: names.join(" or "),
        })
    }

    async fn command(&mut self, command: &[String]) -> Result<PathBuf, BuildError> {
        let output = self.job.command_output();
        let mut words: Vec<OsString> = command.iter().map(OsString::from).collect();
        // A name alone is looked for; a path begins at the folder that the command runs in.
        for program in words.iter_mut().take(1) {
            let name = program.to_string_lossy().into_owned();
            if !name.contains('/')
                && let Some(file) = self.places.files(&name).next()
            {
                *program = file.into_os_string();
            }
        }
        self.runner.variables.push(("HOST_OUTPUT", output.clone().into_os_string()));
        self.runner.run(&words, &[]).await?;
        Ok(output)
    }

    async fn rust(&mut self) -> Result<PathBuf, BuildError> {
        let manifest = self.source(&["Cargo.toml"])?;
        let cargo = self.tool(&tools::CARGO).await?;
        let rustc = self.tool(&tools::RUSTC).await?;
        let target = rust_target(&rustc.words, &self.job.folder, &self.places.path()).await;
        let target = target.ok_or_else(|| BuildError::Missing(no_rust_target()))?;
        // Crates are fetched by cargo when the project asks for it, never by a build here.
        let arguments = ["build", "--release", "--offline", "--target", target];
        let mut all = words(&cargo, &arguments.map(OsStr::new));
        all.push("--message-format=json-render-diagnostics".into());
        let messages = self.runner.capture(&all).await.map_err(|why| match why {
            why @ RunError::Failed { .. } => BuildError::Run {
                why,
                hint: Some("crates are not fetched by a build: if one is missing, run `cargo fetch` in its folder"),
            },
            why => why.into(),
        })?;
        let library = library_in(&messages, &manifest);
        library.ok_or(BuildError::NoLibrary(manifest))
    }

    async fn javascript(&mut self, language: Language) -> Result<PathBuf, BuildError> {
        let names: &[&str] = match language {
            Language::Ts => &["handler.ts", "src/handler.ts"],
            _ => &["handler.js", "handler.mjs", "src/handler.js"],
        };
        let source = self.source(names)?;
        self.tool(&tools::NODE).await?;
        let esbuild = self.tool(&tools::ESBUILD).await?;
        let componentize = self.tool(&tools::COMPONENTIZE_QJS).await?;
        if language == Language::Ts && self.job.folder.join("tsconfig.json").is_file() {
            let tsc = self.tool(&tools::TSC).await?;
            let checked = self.run(&tsc, &["--noEmit", "--project", "."].map(OsStr::new)).await;
            checked.map_err(|why| self.without_packages(why))?;
        }
        let (bundle, facts) = (self.work("bundle.js"), self.work("bundle.json"));
        let sdk = self.sdk();
        let mut arguments: Vec<OsString> = vec![source.clone().into()];
        arguments.extend(
            [
                "--bundle",
                "--format=esm",
                "--target=es2022",
                "--conditions=event-host",
                "--external:event-host:*",
                "--log-level=warning",
            ]
            .map(OsString::from),
        );
        arguments.push(joined("--outfile=", &bundle));
        arguments.push(joined("--metafile=", &facts));
        let package = self.job.package();
        if let (None, Some(sdk)) = (&package, &sdk) {
            arguments.push(joined("--alias:@event-host/sdk=", &sdk.join("src/index.js")));
        }
        let bundled = self.run(&esbuild, &as_str(&arguments)).await;
        bundled.map_err(|why| self.without_packages(why))?;
        let kind = exported(&self.read(&facts)?, &source)?;
        let wit = match package.or(sdk) {
            Some(sdk) if sdk.join("wit").is_dir() => sdk.join("wit"),
            _ => self.wit()?,
        };
        let output = self.work("handler.wasm");
        let arguments = [
            OsStr::new("--wit"),
            wit.as_os_str(),
            OsStr::new("--world"),
            OsStr::new(kind.world()),
            OsStr::new("--sync"),
            OsStr::new("--js"),
            bundle.as_os_str(),
            OsStr::new("--output"),
            output.as_os_str(),
        ];
        self.run(&componentize, &arguments).await?;
        Ok(output)
    }

    /// Says what helps where npm has installed nothing yet.
    fn without_packages(&self, why: BuildError) -> BuildError {
        let folder = &self.job.folder;
        let installed = folder.ancestors().any(|above| above.join("node_modules").is_dir());
        match why {
            BuildError::Run { why: why @ RunError::Failed { .. }, .. }
                if !installed && folder.join("package.json").is_file() =>
            {
                let hint = "the packages of package.json are not installed: run `npm install` in its folder";
                BuildError::Run { why, hint: Some(hint) }
            }
            why => why,
        }
    }

    async fn python(&mut self) -> Result<PathBuf, BuildError> {
        let source = self.source(&["app.py"])?;
        let componentize = self.tool(&tools::COMPONENTIZE_PY).await?;
        let kind = python_kind(&self.read_text(&source)?);
        let output = self.work("handler.wasm");
        let sdk = self.sdk();
        let wit = match &sdk {
            Some(_) => None,
            // One that is installed brings the contract along.
            None if self.job.has_python_package() => None,
            None => Some(self.wit()?),
        };
        let mut arguments: Vec<OsString> = Vec::new();
        if let Some(wit) = wit {
            arguments.extend(["--wit-path".into(), wit.into_os_string()]);
        }
        arguments.extend(["--world", kind.world(), "componentize"].map(OsString::from));
        for place in sdk.iter().map(|sdk| sdk.as_os_str()).chain([OsStr::new(".")]) {
            arguments.extend(["--python-path".into(), place.to_owned()]);
        }
        arguments.extend(["app".into(), "--output".into(), output.clone().into_os_string()]);
        // Where it looks for what the module imports.
        let environment = self.places.environment();
        let variables: Vec<_> =
            environment.iter().map(|folder| ("VIRTUAL_ENV", folder.as_os_str())).collect();
        self.run_with(&componentize, &as_str(&arguments), &variables).await?;
        Ok(output)
    }

    async fn go(&mut self) -> Result<PathBuf, BuildError> {
        self.source(&["go.mod"])?;
        let go = self.tool(&tools::GO).await?;
        let output = self.work("handler.wasm");
        let arguments = ["run", "event-host.dev/sdk/cmd/build", "-o"].map(OsStr::new);
        let arguments = [&arguments[..], &[output.as_os_str(), OsStr::new(".")]].concat();
        // Modules and toolchains are fetched by the project's own `go mod download`.
        let offline = [("GOPROXY", OsStr::new("off")), ("GOTOOLCHAIN", OsStr::new("local"))];
        self.run_with(&go, &arguments, &offline).await?;
        Ok(output)
    }

    async fn c(&mut self, language: Language) -> Result<PathBuf, BuildError> {
        let endings: &[&str] = match language {
            Language::Cpp => &["cpp", "cc", "cxx"],
            _ => &["c"],
        };
        let sources = sources(&self.job.folder, endings);
        if sources.is_empty() {
            return Err(BuildError::NoSource {
                folder: self.job.folder.clone(),
                wanted: format!("handler.{}", endings[0]),
            });
        }
        let mut kind = Kind::Event;
        for source in &sources {
            if is_c_batch(&self.read_text(source)?) {
                kind = Kind::Batch;
            }
        }
        let compiler = c_compiler(&self.places, language).await.map_err(BuildError::Missing)?;
        let sdk = self.job.sdk_folder();
        let bindings = sdk.join("bindings").join(kind.bindings());
        let object = self.work("host_bindings.o");
        let mut compile = compiler.arguments(Language::C);
        compile.extend(["-Os", "-c"].map(OsString::from));
        compile.push(bindings.join("host_bindings.c").into());
        compile.extend(["-o".into(), object.clone().into_os_string()]);
        self.run(&compiler.found, &as_str(&compile)).await?;

        let output = self.work("handler.wasm");
        let mut link = compiler.arguments(language);
        link.extend(compiler.linking.iter().cloned());
        if language == Language::Cpp {
            link.extend(["-std=c++23", "-fno-exceptions", "-fno-rtti"].map(OsString::from));
        }
        link.extend(
            ["-mexec-model=reactor", "-Os", "-Wall", "-Wextra", "-Wl,-z,stack-size=65536"]
                .map(OsString::from),
        );
        link.push(joined("-I", &sdk.join("include")));
        link.push("-I.".into());
        link.extend(sources.into_iter().map(PathBuf::into_os_string));
        link.extend([object.into(), bindings.join("host_bindings_component_type.o").into()]);
        link.extend(["-o".into(), output.clone().into_os_string()]);
        self.run(&compiler.found, &as_str(&link)).await?;
        Ok(output)
    }

    async fn zig(&mut self) -> Result<PathBuf, BuildError> {
        self.source(&["build.zig"])?;
        let zig = self.tool(&tools::ZIG).await?;
        let prefix = self.work("zig-out");
        let programs = prefix.join("bin");
        // What an older build.zig installed must not be taken for what this one does.
        match fs::remove_dir_all(&programs) {
            Err(why) if why.kind() != std::io::ErrorKind::NotFound => {
                return Err(BuildError::file("empty", &programs)(why));
            }
            _ => {}
        }
        self.run(&zig, &[OsStr::new("build"), OsStr::new("--prefix"), prefix.as_os_str()]).await?;
        let mut made = files_with(&programs, &["wasm"]);
        let named = programs.join(format!("{}.wasm", self.job.name));
        match made.len() {
            1 => Ok(made.remove(0)),
            0 => Err(BuildError::NoOutput {
                file: programs,
                hint: "build.zig installed no .wasm file: call `addHandler` of the SDK",
            }),
            _ if made.contains(&named) => Ok(named),
            _ => Err(BuildError::NoOutput {
                file: named,
                hint: "build.zig installed several .wasm files, and none has the handler's name",
            }),
        }
    }

    fn wat(&self) -> Result<PathBuf, BuildError> {
        let source = self.source(&["handler.wat", &format!("{}.wat", self.job.name)])?;
        let text = self.read_text(&source)?;
        let wasm = wat::Parser::new().parse_str(Some(&source), &text);
        let wasm = wasm.map_err(|why| BuildError::Text(why.to_string()))?;
        let output = self.work("handler.wasm");
        fs::write(&output, wasm).map_err(BuildError::file("write", &output))?;
        Ok(output)
    }

    /// The folder with the contract, for a project without an SDK.
    fn wit(&self) -> Result<PathBuf, BuildError> {
        let folder = self.work("wit");
        let file = folder.join("handler.wit");
        if fs::read(&file).ok().as_deref() != Some(sdk::WIT.as_bytes()) {
            fs::create_dir_all(&folder).map_err(BuildError::file("create", &folder))?;
            fs::write(&file, sdk::WIT).map_err(BuildError::file("write", &file))?;
        }
        Ok(folder)
    }

    fn read(&self, file: &Path) -> Result<Vec<u8>, BuildError> {
        fs::read(file).map_err(BuildError::file("read", file))
    }

    fn read_text(&self, file: &Path) -> Result<String, BuildError> {
        fs::read_to_string(file).map_err(BuildError::file("read", file))
    }
}

fn words(tool: &Found, arguments: &[&OsStr]) -> Vec<OsString> {
    tool.words.iter().cloned().chain(arguments.iter().map(OsString::from)).collect()
}

fn as_str(arguments: &[OsString]) -> Vec<&OsStr> {
    arguments.iter().map(OsString::as_os_str).collect()
}

/// The library that cargo's messages say was built of a package.
fn library_in(messages: &[u8], manifest: &Path) -> Option<PathBuf> {
    let is_of = |value: &Value| {
        let named = value["manifest_path"].as_str().map(Path::new);
        let same = |named: &Path| fs::canonicalize(named).ok() == fs::canonicalize(manifest).ok();
        value["reason"] == "compiler-artifact" && named.is_some_and(same)
    };
    messages
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice::<Value>(line).ok())
        .filter(is_of)
        .flat_map(|value| value["filenames"].as_array().cloned().unwrap_or_default())
        .filter_map(|file| file.as_str().map(PathBuf::from))
        .rfind(|file| file.extension().is_some_and(|ending| ending == "wasm"))
}

/// Which interface a bundle exports, by what esbuild says of it. componentize-qjs does not
/// look: a component of the other world would fail at every call.
fn exported(facts: &[u8], source: &Path) -> Result<Kind, BuildError> {
    let facts: Value = serde_json::from_slice(facts).unwrap_or_default();
    let bundles = facts["outputs"].as_object().into_iter().flat_map(|outputs| outputs.values());
    let exports = |name: &str| {
        let all = bundles.clone().filter_map(|bundle| bundle["exports"].as_array());
        all.flatten().any(|export| export == name)
    };
    match (exports("handler"), exports("batchHandler")) {
        (true, false) => Ok(Kind::Event),
        (false, true) => Ok(Kind::Batch),
        (one, _) => Err(BuildError::Exports { file: source.to_owned(), both: one }),
    }
}

/// Which interface a Python module implements: the SDK's decorator, or the class of the
/// contract.
fn python_kind(text: &str) -> Kind {
    let is_batch = |line: &str| {
        let line = line.split('#').next().unwrap_or_default().trim();
        line.starts_with("@batch_handler")
            || line.starts_with('@') && line.ends_with(".batch_handler")
            || line.starts_with("class BatchHandler")
    };
    if text.lines().any(is_batch) { Kind::Batch } else { Kind::Event }
}

/// Whether a C or C++ source says that it handles batches.
fn is_c_batch(text: &str) -> bool {
    text.lines().any(|line| {
        let mut words = line.trim_start().trim_start_matches('#').split_whitespace();
        line.trim_start().starts_with('#')
            && words.next() == Some("define")
            && words.next() == Some("HOST_BATCH")
    })
}

/// The sources of a C or C++ handler: those in its folder and in `src`, without tests.
fn sources(folder: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut sources = files_with(folder, endings);
    sources.extend(files_with(&folder.join("src"), endings));
    sources.retain(|file| {
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        !name.ends_with("_test") && !name.starts_with("test_")
    });
    sources
}

/// The files of a folder with one of these endings, in order.
fn files_with(folder: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|file| {
            file.is_file()
                && file.extension().is_some_and(|e| endings.iter().any(|known| e == *known))
        })
        .collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests;
