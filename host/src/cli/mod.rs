//! The command line: one file a command, which parses, calls and prints.
//!
//! Results go to stdout, logs and errors to stderr. Exit codes: 0 done, 1
//! failed, 2 used wrongly. What cannot be written to stderr is lost, and changes neither
//! what is done nor the exit code. A reader of stdout that goes away, such as `head`, ends
//! a listing quietly, with 0; what changes something does all of it first. Where stdout
//! cannot be written for another reason, that is said, with 1.

mod adopt;
mod attempt;
#[cfg(feature = "build")]
mod build;
mod check;
mod compile;
mod database;
mod deploy;
mod dlq;
mod exposure;
mod grants;
mod groups;
mod health;
mod http;
mod interrupt;
mod invoke;
mod metrics;
mod migrate;
mod named_component;
#[cfg(feature = "build")]
mod new;
mod output;
mod progress;
mod publish;
mod reproduce;
mod rollback;
mod run;
mod schedules;
mod serve;
mod status;
mod token;
mod versions;
mod webhook;

use std::borrow::Cow;
use std::io::{self, IsTerminal as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Parser, Subcommand};

use crate::app::loading::NotAllLoaded;
use crate::app::{self, Say, secrets};
use crate::config::GivenUrl;
use crate::telemetry::{self, LogFormat};
use event_host_core::foreign;
use event_host_store::StoreError;

/// Calls WebAssembly handlers with the events of an append-only log.
#[derive(Debug, Parser)]
#[command(name = "host", version, about, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(Debug, Clone, Args)]
struct Global {
    /// The settings [default: handlers.toml]
    #[arg(short, long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The database, over what the settings say, such as sqlite:host.db or
    /// postgres://user@server/database
    #[arg(long, global = true, value_name = "URL")]
    database: Option<GivenUrl>,
    /// What to log: error, warn, info, debug, trace, or a filter such as
    /// `event_host=debug,guest=warn`
    #[arg(long, global = true, value_name = "FILTER", env = "HOST_LOG")]
    log: Option<String>,
    /// How to log
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,
}

impl Global {
    /// The settings file, if it was named or is in the current folder.
    fn config_path(&self) -> PathBuf {
        self.config.clone().unwrap_or_else(|| PathBuf::from("handlers.toml"))
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a new handler from a template: sources, a test, an event, and its settings
    #[cfg(feature = "build")]
    New(new::New),
    /// Run the handlers
    Run(run::Run),
    /// Serve by HTTP, without running handlers
    Serve(serve::Serve),
    /// Ask a host on this machine whether it is well
    Health(health::Health),
    /// Make tokens for HTTP
    #[command(subcommand)]
    Token(token::Tokens),
    /// Say everything that `run` would refuse, without running
    Check(check::Check),
    /// Make components of the sources that the settings name
    #[cfg(feature = "build")]
    Build(build::Build),
    /// Append events to the log
    Publish(publish::Publish),
    /// Call a component with one event, without a database
    Invoke(invoke::Invoke),
    /// Show the log and every group: who leads, how far it is, what holds it up
    Status(status::Status),
    /// Look at consumer groups, pause them, move their cursors
    #[command(subcommand)]
    Groups(groups::Groups),
    /// Look at dead letters, reproduce, replay or discard them
    #[command(subcommand)]
    Dlq(dlq::Dlq),
    /// Make a component what all hosts of the database run for a handler
    Deploy(deploy::Deploy),
    /// Go back to the version of a handler before the active one
    Rollback(rollback::Rollback),
    /// Show what was deployed for a handler: when, by whom, and what is active
    Versions(versions::Versions),
    /// Try out a source of webhooks: check a request, or sign one
    #[command(subcommand)]
    Webhook(webhook::Webhook),
    /// Say which metrics a host exports
    #[command(subcommand)]
    Metrics(metrics::MetricsCommand),
    /// Bring the database's schema up to date
    Migrate(migrate::Migrate),
    /// Print the SQL that gives a PostgreSQL role what it needs
    Grants(grants::Grants),
    /// Accept a database that was restored from another server
    Adopt(adopt::Adopt),
    /// Compile a component for the host that started this process
    #[command(hide = true)]
    CompileComponent(compile::Compile),
}

/// Something that cannot be done, because the command was used wrongly.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct UsageError(String);

/// Says lines to stderr.
fn say() -> Say {
    Arc::new(|line: &str| telemetry::say(line))
}

/// Everything was said already; only the exit code is left.
#[derive(Debug, thiserror::Error)]
#[error("failed")]
struct AlreadySaid;

/// Says, after the database broke off, that its outcome is not known, and what
/// shows it.
fn outcome_known<T>(result: Result<T, StoreError>, look: &str, at: &str) -> anyhow::Result<T> {
    result.map_err(|error| match error {
        StoreError::Unavailable(_) => anyhow::Error::new(error)
            .context(format!("whether it was done is not known; `{look} {at}` shows it")),
        error => error.into(),
    })
}

/// Parses the arguments, runs the command, and says how it went.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(answer) => return answered(&answer),
    };
    // Before any other thread is there, because it is limited as a whole.
    if let Command::CompileComponent(compile) = &cli.command {
        return compile.run();
    }
    if matches!(cli.command, Command::Run(_) | Command::Serve(_)) {
        app::http::take_inherited();
    }
    if let Err(wrong) = telemetry::start(cli.global.log_format, cli.global.log.as_deref()) {
        telemetry::say(&format!("error: {}", secrets::hidden(&wrong.to_string())));
        telemetry::flush();
        return ExitCode::from(2);
    }
    let code = match crate::runtime::start() {
        Ok(runtime) => {
            // One that panics has said so, and ends as one that fails.
            let run = || {
                runtime.block_on(async {
                    let result = dispatch(cli).await;
                    app::database::close().await;
                    result
                })
            };
            let result = catch_unwind(AssertUnwindSafe(run));
            let result = result.unwrap_or_else(|_| Err(AlreadySaid.into()));
            // A read of stdin whose result is no longer needed must not hold up the end.
            runtime.shutdown_background();
            result.map_or_else(|error| exit_code(&error), |()| ExitCode::SUCCESS)
        }
        Err(why) => {
            telemetry::say(&format!("error: cannot start: {why}"));
            ExitCode::FAILURE
        }
    };
    telemetry::flush();
    code
}

/// Prints what the arguments alone are answered with: help, or what is wrong with them.
fn answered(answer: &clap::Error) -> ExitCode {
    if !answer.use_stderr() {
        return match answer.print() {
            Err(why) if why.kind() != io::ErrorKind::BrokenPipe => {
                telemetry::say(&format!("error: cannot write to stdout: {why}"));
                telemetry::flush();
                ExitCode::FAILURE
            }
            _ => ExitCode::SUCCESS,
        };
    }
    let text = answer.render();
    let plain = text.to_string();
    match secrets::hidden(&plain) {
        Cow::Owned(hidden) => telemetry::say(hidden.trim_end()),
        // The arguments may have been somebody else's words.
        Cow::Borrowed(plain) if io::stderr().is_terminal() && foreign::clean(plain) == plain => {
            telemetry::say_styled(text.ansi().to_string().trim_end());
        }
        Cow::Borrowed(plain) => telemetry::say(plain.trim_end()),
    }
    telemetry::flush();
    ExitCode::from(2)
}

fn exit_code(error: &anyhow::Error) -> ExitCode {
    if output::reader_is_gone(error) {
        return ExitCode::SUCCESS;
    }
    if error.is::<AlreadySaid>() || error.is::<NotAllLoaded>() {
        return ExitCode::FAILURE;
    }
    telemetry::say(&format!("error: {}", secrets::hidden(&format!("{error:#}"))));
    if error.is::<UsageError>() { ExitCode::from(2) } else { ExitCode::FAILURE }
}

async fn dispatch(cli: Cli) -> anyhow::Result<()> {
    let Cli { global, command } = cli;
    match command {
        #[cfg(feature = "build")]
        Command::New(new) => new.run(&global).await,
        Command::Run(run) => run.run(&global).await,
        Command::Serve(serve) => serve.run(&global).await,
        Command::Health(health) => health.run(&global).await,
        Command::Token(tokens) => tokens.run(),
        Command::Check(check) => check.run(&global).await,
        #[cfg(feature = "build")]
        Command::Build(build) => build.run(&global).await,
        Command::Publish(publish) => publish.run(&global).await,
        Command::Invoke(invoke) => invoke.run().await,
        Command::Status(status) => status.run(&global).await,
        Command::Groups(groups) => groups.run(&global).await,
        Command::Dlq(dlq) => dlq.run(&global).await,
        Command::Deploy(deploy) => deploy.run(&global).await,
        Command::Rollback(rollback) => rollback.run(&global).await,
        Command::Versions(versions) => versions.run(&global).await,
        Command::Webhook(webhook) => webhook.run(&global),
        Command::Metrics(metrics) => metrics.run(),
        Command::Migrate(migrate) => migrate.run(&global).await,
        Command::Grants(grants) => grants.run(),
        Command::Adopt(adopt) => adopt.run(&global).await,
        // Done by `main`.
        Command::CompileComponent(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }
}
