//! What `host new` makes, tried as its README says: the test, the build, and one event.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::Found;
use crate::command::{shown, stdout_of};

/// Where the projects are made, in the folder of the handlers.
const FOLDER: &str = "projects";

/// Where the templates' service is, which a server here stands in for.
const SERVICE: &str = "localhost:8080";

/// A folder of projects.
pub(super) struct Projects {
    folder: PathBuf,
    /// The folder that has the host by the name that READMEs call it by.
    programs: PathBuf,
    /// Where cargo builds, for all projects in Rust, which have much in common.
    cargo: PathBuf,
    service: String,
    languages: Vec<Value>,
}

impl Projects {
    /// An empty folder in `output`, for projects of this host.
    pub(super) fn new(output: &Path, host: &Path) -> Result<Self> {
        let folder = output.join(FOLDER);
        let is_there = folder.try_exists().with_context(|| folder.display().to_string())?;
        if is_there {
            fs::remove_dir_all(&folder)
                .with_context(|| format!("cannot empty {}", folder.display()))?;
        }
        let programs = folder.join("bin");
        fs::create_dir_all(&programs)
            .with_context(|| format!("cannot create {}", programs.display()))?;
        std::os::unix::fs::symlink(host, programs.join("host")).context("cannot name the host")?;
        let list = stdout_of(Command::new(host).args(["new", "--list", "--json"]))?;
        let languages = serde_json::from_str(&list).context("`host new --list --json`")?;
        let cargo = output.join("projects-cargo");
        Ok(Self { folder, programs, cargo, service: serve()?, languages })
    }

    /// Makes every template of a language, and does what its README says. Gives how many
    /// there are: none of what `host new` does not know.
    pub(super) fn try_all(&self, language: &str, found: &Found) -> Result<usize> {
        let listed = self.languages.iter().find(|listed| listed["name"] == language);
        let Some(listed) = listed else { return Ok(0) };
        let templates = listed["templates"].as_array().context("a language without templates")?;
        for template in templates.iter().filter_map(Value::as_str) {
            self.try_one(language, template, found)
                .with_context(|| format!("the template {template} of {language}"))?;
        }
        Ok(templates.len())
    }

    fn try_one(&self, language: &str, template: &str, found: &Found) -> Result<()> {
        let name = format!("{language}-{template}");
        println!("sdks: {name}");
        // Each has a settings file of its own: what another one lacks is not its fault.
        let folder = self.folder.join(&name);
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let arguments = ["new", &name, "--lang", language, "--template", template];
        self.run(Command::new(self.programs.join("host")).args(arguments), &folder, found)?;
        let project = folder.join(&name);
        self.move_service(&folder.join("handlers.toml"), &project)?;

        let readme = fs::read_to_string(project.join("README.md")).context("its README")?;
        let commands = commands(&readme);
        ensure!(commands.len() >= 2, "its README has {} commands", commands.len());
        let mut said = String::new();
        for command in commands {
            println!("$ {command}");
            said = self.run(Command::new("sh").args(["-e", "-c", command]), &folder, found)?;
        }
        ensure!(said.starts_with("success"), "the event does not succeed: {said}");
        // Up to 400 MB, which nobody looks at again.
        match fs::remove_dir_all(project.join("node_modules")) {
            Err(why) if why.kind() != std::io::ErrorKind::NotFound => {
                bail!("cannot remove node_modules of {name}: {why}")
            }
            _ => Ok(()),
        }
    }

    /// Runs a command in a folder, and gives what it printed, which is shown too.
    fn run(&self, command: &mut Command, folder: &Path, found: &Found) -> Result<String> {
        found.name_to(command)?;
        let path = command.get_envs().find(|(name, _)| *name == "PATH").and_then(|(_, path)| path);
        let path = path.context("a command without a PATH")?.to_owned();
        let path = std::env::join_paths(
            std::iter::once(self.programs.clone()).chain(std::env::split_paths(&path)),
        )?;
        command.env("PATH", path).env("CARGO_TARGET_DIR", &self.cargo);
        // What npm fetched before it takes from its cache, as pip and cargo do.
        command.env("npm_config_prefer_offline", "true");
        command.current_dir(folder).stdout(Stdio::piped());
        let mut child =
            command.spawn().with_context(|| format!("cannot start {}", shown(command)))?;
        let mut said = String::new();
        let out = child.stdout.take().context("it has no stdout")?;
        for line in BufReader::new(out).lines() {
            let line = line.with_context(|| format!("{} printed no text", shown(command)))?;
            println!("{line}");
            said.push_str(&line);
            said.push('\n');
        }
        let status = child.wait().with_context(|| shown(command))?;
        ensure!(status.success(), "{} failed: {status}", shown(command));
        Ok(said)
    }

    /// Puts the service's address here in place of the templates'.
    fn move_service(&self, settings: &Path, project: &Path) -> Result<()> {
        let mut files = vec![settings.to_owned()];
        for folder in [project.to_owned(), project.join("src")] {
            let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
            files.extend(entries.map(|entry| entry.path()).filter(|path| path.is_file()));
        }
        for file in files {
            let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            if text.contains(SERVICE) {
                fs::write(&file, text.replace(SERVICE, &self.service))
                    .with_context(|| file.display().to_string())?;
            }
        }
        Ok(())
    }
}

/// The commands in the first console block of a README.
fn commands(readme: &str) -> Vec<&str> {
    let block = readme.split("```console\n").nth(1).and_then(|rest| rest.split("```").next());
    block.unwrap_or_default().lines().filter_map(|line| line.strip_prefix("$ ")).collect()
}

/// A service that takes every order; gives its address.
fn serve() -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen")?;
    let port = listener.local_addr()?.port();
    // It ends with this program.
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if let Err(why) = take_order(stream) {
                eprintln!("the service of the templates: {why:#}");
            }
        }
    });
    Ok(format!("localhost:{port}"))
}

/// Reads a request to its end, and answers.
fn take_order(mut stream: TcpStream) -> Result<()> {
    let mut reader = BufReader::new(&stream);
    let (mut length, mut is_chunked) = (0, false);
    loop {
        let mut line = String::new();
        ensure!(reader.read_line(&mut line)? > 0, "a request that is cut short");
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
        is_chunked |= line == "transfer-encoding: chunked";
    }
    let mut body = Vec::new();
    loop {
        if is_chunked {
            let mut size = String::new();
            reader.read_line(&mut size)?;
            length = usize::from_str_radix(size.trim_end(), 16).context("the size of a chunk")?;
        }
        let begin = body.len();
        body.resize(begin + length, 0);
        reader.read_exact(&mut body[begin..])?;
        if !is_chunked || length == 0 {
            break;
        }
        reader.read_line(&mut String::new())?;
    }
    let order: Value = serde_json::from_slice(&body).context("an order that is no JSON")?;
    let answer = format!("{{\"taken\":{}}}", order["id"]);
    write!(
        stream,
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{answer}",
        answer.len()
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_of_a_readme_are_those_of_its_first_block() {
        let readme = "# a\n\n```console\n$ one && two\n$ three\n```\n\n```console\n$ four\n```\n";
        assert_eq!(commands(readme), ["one && two", "three"]);
        assert!(commands("# nothing\n").is_empty());
    }
}
