//! `host new`: a handler from a template.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use super::{Global, UsageError, output};
use crate::build::{self, Need};
use crate::language::Language;
use crate::project::{NewError, Project, Template};
use event_host_core::event::HandlerName;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  host new orders --lang python
  host new billing --lang go --template batch
  host new --list")]
pub(super) struct New {
    /// Its name: that of its folder and of its table [handlers.NAME]
    #[arg(required_unless_present = "list", conflicts_with = "list")]
    name: Option<HandlerName>,
    /// The language: rust, js, ts, python, go, c, cpp, zig or wat
    #[arg(long, value_name = "LANGUAGE", conflicts_with = "list")]
    lang: Option<Language>,
    /// What it begins with; `host new --list` tells what there is
    #[arg(long, value_name = "TEMPLATE", default_value = "hello", conflicts_with = "list")]
    template: Template,
    /// The settings file that it is added to, beside which its folder is made [default: that of
    /// --config, or handlers.toml]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["list", "config"])]
    into: Option<PathBuf>,
    /// Show the languages, their templates, and which tools are there
    #[arg(long)]
    list: bool,
    /// Print the list as JSON
    #[arg(long, requires = "list")]
    json: bool,
}

impl New {
    pub(super) async fn run(self, global: &Global) -> anyhow::Result<()> {
        let Some(name) = self.name else { return list(&global.config_path(), self.json).await };
        let Some(language) = self.lang else {
            return Err(UsageError(format!(
                "which language is {name} to be in? Say --lang and one of {}",
                Language::ALL.map(Language::name).join(", ")
            ))
            .into());
        };
        let settings = self.into.unwrap_or_else(|| global.config_path());
        let project = Project { name, language, template: self.template };
        let made = project.make(&settings).map_err(|why| match why {
            NewError::NoTemplate { .. } | NewError::Name { .. } => {
                UsageError(why.to_string()).into()
            }
            why => anyhow::Error::new(why),
        })?;
        let Project { name, language, template } = &project;
        output::line(format!(
            "{}: the template {template} in {}; {} has [handlers.{name}]",
            made.folder.display(),
            language.title(),
            settings.display(),
        ))?;
        let place = match folder_of(&settings) {
            here if here == Path::new(".") => String::new(),
            folder => format!(", in {}", folder.display()),
        };
        output::line(format!("\nIts test, its build and one event{place}:"))?;
        for command in made.commands() {
            output::line(format!("  {command}"))?;
        }
        Ok(())
    }
}

/// The folder in which a settings file is.
fn folder_of(settings: &Path) -> &Path {
    match settings.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// Shows what can be made, and which tools for it are there.
async fn list(settings: &Path, as_json: bool) -> anyhow::Result<()> {
    let root = std::path::absolute(folder_of(settings))?;
    let mut table = output::table(["language", "name", "templates", "tools of host build"]);
    let mut languages = Vec::new();
    for language in Language::ALL {
        let templates: Vec<_> = Template::of(language).map(Template::name).collect();
        let needs = build::needs(language, &root, &root).await;
        table.add_row([language.title(), language.name(), &templates.join(", "), &told(&needs)]);
        let without: serde_json::Map<_, _> = Template::ALL
            .into_iter()
            .filter_map(|template| {
                Some((template.to_string(), json!(template.missing_in(language)?)))
            })
            .collect();
        let missing: Vec<_> = needs.iter().filter(|need| need.found.is_err()).collect();
        languages.push(json!({
            "name": language.name(),
            "title": language.title(),
            "templates": templates,
            "no_templates": without,
            "missing_tools": missing.iter().map(|need| need.tool).collect::<Vec<_>>(),
        }));
    }
    if as_json {
        output::json(&languages)?;
        return Ok(());
    }
    output::print_table(&table)?;
    output::line("")?;
    for template in Template::ALL {
        output::line(format!("{template:<10} {}", template.about()))?;
    }
    output::line(
        "\nA new project's own npm and pip bring what is missing of js, ts and python, as its README\n\
         says. `host build --doctor` says what installs the others.",
    )?;
    Ok(())
}

/// Which tools there are, or what is missing.
fn told(needs: &[Need]) -> String {
    let missing: Vec<_> = needs
        .iter()
        .filter_map(|need| {
            let instead = need.found.as_ref().err()?;
            let there =
                if instead == "-" { String::new() } else { format!(" (there is {instead})") };
            Some(format!("{} {}{there}", need.tool, need.wanted))
        })
        .collect();
    if !missing.is_empty() {
        return format!("missing: {}", missing.join(", "));
    }
    let found = needs.iter().filter_map(|need| Some((need.tool, need.found.as_ref().ok()?)));
    let there: Vec<_> = found.map(|(tool, (version, _))| format!("{tool} {version}")).collect();
    if there.is_empty() { "none are needed".to_owned() } else { there.join(", ") }
}
