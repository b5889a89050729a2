//! Building the host, in the one profile that the demonstration and the tests share.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::command::{artifacts, cargo, run, stdout_of};

/// Where the host is, in the repository.
pub(crate) const PROGRAM: &str = "target/debug/host";

/// Builds the host, and gives the path of the program.
pub(crate) fn build(root: &Path) -> Result<PathBuf> {
    println!("host: building it (minutes the first time)");
    run(&mut command(root))?;
    Ok(root.join(PROGRAM))
}

/// Reads `--install` and `--host FILE`: whether to install what is missing, and the program,
/// which is built where none is named.
pub(crate) fn installing(root: &Path, arguments: &[&str]) -> Result<(bool, PathBuf)> {
    let (mut install, mut program) = (false, None);
    let mut arguments = arguments.iter();
    while let Some(&argument) = arguments.next() {
        match argument {
            "--install" => install = true,
            "--host" => program = Some(root.join(arguments.next().context("--host takes a file")?)),
            other => bail!("`{other}` is not one of --install and --host FILE"),
        }
    }
    Ok((install, program.map_or_else(|| build(root), Ok)?))
}

/// Fails if the host needs anything that was not built together with the tests: then
/// whoever has seen the demonstration compiles it twice.
pub(crate) fn ensure_built_with_the_tests(root: &Path) -> Result<()> {
    let messages = stdout_of(command(root).arg("--message-format=json-render-diagnostics"))?;
    let built = compiled(&messages)?;
    ensure!(
        built.is_empty(),
        "the tests have these with other features than the host, so that they are built twice \
         (tests/Cargo.toml says what to do): {}",
        built.join(", ")
    );
    Ok(())
}

/// The build, with the whole workspace's features, as the tests have them.
fn command(root: &Path) -> Command {
    let mut command = cargo();
    command.args(["build", "--workspace", "--bin", "host", "--locked"]).current_dir(root);
    command
}

/// The targets that cargo compiled now, by what it printed of a build.
fn compiled(messages: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for artifact in artifacts(messages)? {
        if artifact["fresh"] == false {
            let name = artifact["target"]["name"].as_str();
            names.push(name.with_context(|| format!("no name in {artifact}"))?.to_owned());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_is_not_compiled() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"tokio"},"fresh":true}
{"reason":"compiler-artifact","target":{"name":"sqlx"},"fresh":false}
{"reason":"build-finished","success":true}"#;
        assert_eq!(compiled(messages).unwrap(), ["sqlx"]);
        assert!(compiled("warning: no JSON").is_err());
    }
}
