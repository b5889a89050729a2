//! `cargo xtask kubernetes`: the manifests in contrib/kubernetes, by Kubernetes' own schemas,
//! against each other, and against what the image was tried with; and their settings by the
//! host.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::command::{probe, run, stdout_of};
use crate::image::{USER, WRITABLE};
use crate::{host, root};

/// The package that has the schemas, at the version that was tried.
const PYPI: &str = "kubernetes-validate==1.37.0";

/// Where it goes, in the repository.
const VENV: &str = "target/tools/kubernetes";

/// Checks the manifests.
///
/// # Errors
/// When something is wrong with one.
pub(crate) fn check(arguments: &[&str]) -> Result<()> {
    let root = root()?;
    let (install, program) = host::installing(&root, arguments)?;
    let folder = root.join("contrib/kubernetes");
    for variant in ["postgres", "sqlite"] {
        check_settings(&root, &folder.join(variant), &program)?;
    }
    let venv = root.join(VENV);
    if install {
        install_into(&venv);
    }
    let python = venv.join("bin/python");
    let has_it = probe(Command::new(&python).args(["-c", "import kubernetes_validate, yaml"]));
    if !has_it.is_some_and(|output| output.status.success()) {
        println!(
            "kubernetes: leaves out the manifests: cargo xtask kubernetes --install, which takes python3 with venv and PyPI's {PYPI}"
        );
        return Ok(());
    }
    let metrics = stdout_of(Command::new(&program).args(["metrics", "list", "--json"]))?;
    let facts = json!({ "user": USER, "writable": WRITABLE, "metrics": names(&metrics)? });
    let script = root.join("tests/kubernetes/check.py");
    run(Command::new(&python).arg(script).arg(&folder).arg(facts.to_string()))
}

/// Has the host check the settings of a variant, whose handler is that of the template.
fn check_settings(root: &Path, variant: &Path, program: &Path) -> Result<()> {
    let handler = fs::read(variant.join("hello.wat"))?;
    let template = fs::read(root.join("host/templates/wat/hello/handler.wat"))?;
    ensure!(
        handler == template,
        "{}/hello.wat is not the handler of the template any more: copy host/templates/wat/hello/handler.wat",
        variant.display()
    );
    let mut command = Command::new(program);
    command.args(["check", "--json", "handlers.toml"]).current_dir(variant);
    // It is only read: `check` connects to no database here.
    command.env("DATABASE_URL", "postgres://host@db.example.com/events?sslmode=verify-full");
    stdout_of(&mut command)?;
    println!("kubernetes: {}: the host takes its settings", variant.display());
    Ok(())
}

/// Brings the schemas; what cannot be had is said when it is looked for.
fn install_into(venv: &Path) {
    let mut made = Command::new("python3");
    made.args(["-m", "venv"]).arg(venv);
    let mut pip = Command::new(venv.join("bin/pip"));
    pip.args(["install", "--quiet", PYPI]);
    for command in [&mut made, &mut pip] {
        if let Err(why) = run(command) {
            println!("kubernetes: {why:#}");
        }
    }
}

/// The names that Prometheus has of the metrics.
fn names(listed: &str) -> Result<Vec<String>> {
    let listed: Vec<Value> = serde_json::from_str(listed).context("`metrics list` is no JSON")?;
    listed
        .iter()
        .map(|metric| {
            metric["name"].as_str().map(str::to_owned).with_context(|| format!("no name: {metric}"))
        })
        .collect()
}
