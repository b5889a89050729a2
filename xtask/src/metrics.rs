//! The alerts and the dashboard, checked with Prometheus' own tool.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::command::{probe, run};
use crate::{debian, root};

/// Debian's package that has the tool.
const PACKAGE: &str = "prometheus";

/// Where the tool is unpacked to, in the repository: nothing is installed, and no server runs.
const UNPACKED: &str = "target/tools/prometheus";

/// Checks the rules, runs their tests, and checks every expression of the dashboard.
///
/// # Errors
/// When one is wrong; and when the tool is missing, with what installs it.
pub(crate) fn check(arguments: &[&str]) -> Result<()> {
    let may_fetch = match arguments {
        [] => false,
        ["--install"] => true,
        other => bail!("`{}`: `metrics` takes `--install` and nothing else", other.join(" ")),
    };
    let root = root()?;
    let Some(promtool) = find(&root, may_fetch)? else {
        bail!(
            "promtool is missing: `cargo xtask metrics --install` fetches Debian's package `{PACKAGE}` and unpacks it into {UNPACKED}; or put promtool on the path"
        );
    };
    let rules = root.join("contrib/prometheus");
    run(Command::new(&promtool).args(["check", "rules", "rules.yml"]).current_dir(&rules))?;
    run(Command::new(&promtool).args(["test", "rules", "rules.test.yml"]).current_dir(&rules))?;
    let dashboard = root.join("contrib/grafana/host.json");
    let expressions = expressions(&read(&dashboard)?)?;
    let as_rules = root.join("target/tools/dashboard.rules.json");
    fs::create_dir_all(root.join("target/tools"))?;
    fs::write(&as_rules, expressions.to_string())?;
    run(Command::new(&promtool).args(["check", "rules"]).arg(&as_rules))
}

/// The tool: on the path, unpacked before, or fetched now.
fn find(root: &Path, may_fetch: bool) -> Result<Option<PathBuf>> {
    let unpacked = root.join(UNPACKED).join("usr/bin/promtool");
    for program in [Path::new("promtool"), &unpacked] {
        if probe(Command::new(program).arg("--version")).is_some() {
            return Ok(Some(program.to_owned()));
        }
    }
    if !may_fetch {
        return Ok(None);
    }
    ensure!(debian::is_here(), "not a Debian system (no apt-get): put promtool on the path");
    let folder = root.join(UNPACKED);
    fs::create_dir_all(&folder)?;
    println!("metrics: fetching Debian's package {PACKAGE}, and unpacking it into {UNPACKED}");
    run(Command::new("apt-get").args(["download", "-qq", PACKAGE]).current_dir(&folder))
        .context("as root, run: apt-get update")?;
    let packages = fs::read_dir(&folder)?.filter_map(|entry| Some(entry.ok()?.path()));
    let package = packages.filter(|path| path.extension().is_some_and(|e| e == "deb")).max();
    let package = package.context("apt-get downloaded no package")?;
    run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&folder))?;
    fs::remove_file(package)?;
    Ok(Some(unpacked))
}

fn read(path: &Path) -> Result<Value> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is not JSON", path.display()))
}

/// The expressions of a dashboard as recording rules, for which there is a checker. JSON is
/// YAML. Grafana's variables stand for what they would be.
fn expressions(dashboard: &Value) -> Result<Value> {
    let panels = dashboard["panels"].as_array().context("the dashboard has no panels")?;
    let mut rules = Vec::new();
    for panel in panels {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str();
            let expression = expression.with_context(|| format!("no expression in {panel}"))?;
            let expression = expression
                .replace("$__rate_interval", "5m")
                .replace("$group", ".*")
                .replace("$job", ".*");
            ensure!(!expression.contains('$'), "an unknown variable in `{expression}`");
            let name = format!("dashboard:panel_{}:{}", panel["id"], rules.len());
            rules.push(json!({ "record": name, "expr": expression }));
        }
    }
    ensure!(!rules.is_empty(), "the dashboard asks for nothing");
    Ok(json!({ "groups": [{ "name": "dashboard", "rules": rules }] }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_dashboard_asks_for_becomes_rules_and_an_unknown_variable_is_refused() {
        let panel = |expr: &str| json!({ "panels": [{ "id": 1, "targets": [{ "expr": expr }] }] });
        let rules = expressions(&panel("rate(a{g=~\"$group\"}[$__rate_interval])")).unwrap();
        assert_eq!(rules["groups"][0]["rules"][0]["expr"], "rate(a{g=~\".*\"}[5m])");
        assert!(expressions(&panel("a{b=\"$other\"}")).is_err());
        assert!(expressions(&json!({ "panels": [] })).is_err());
    }
}
