//! `inplace hook ...`: checks and runs a `HookTemplate` before any workload uses it.
//! `check` needs no cluster. Nothing is changed except what the hook itself changes.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use crate::api::hook_manifest;
use crate::api::hook_template::HookTemplate;
use crate::cli::exit::Exit;
use crate::cli::output::{self, message};
use crate::cluster;
use crate::failure::Class;
use crate::hook::problems::problems;

mod explain;
mod pod;
mod test;
/// Test hooks
#[derive(Debug, Args)]
pub struct HookCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run a HookTemplate from a file, and explain its verdict
    Test(Box<test::TestArgs>),
    /// Check whether a HookTemplate is valid, without a measurement
    Check(CheckArgs),
}

/// Arguments of `hook check`.
#[derive(Debug, Args)]
struct CheckArgs {
    /// The HookTemplate; `-` for standard input
    #[arg(short, long, value_name = "TEMPLATE.YAML")]
    file: PathBuf,
}

/// Error that prevents a hook from being run.
#[derive(Debug, thiserror::Error)]
enum Failed {
    /// The hook cannot be run as written.
    #[error("{0}")]
    Refused(String),
    /// No container runtime was found.
    #[error(transparent)]
    Endpoint(#[from] crate::cri::endpoint::NoEndpoint),
    /// The runtime returned an error, or did not answer in time.
    #[error(transparent)]
    Runtime(#[from] crate::cri::error::Error),
    /// The API server returned an error, or did not answer in time.
    #[error(transparent)]
    Cluster(#[from] cluster::error::Error),
    /// The connection to the API server could not be prepared.
    #[error(transparent)]
    Connection(#[from] crate::cli::cluster::Failed),
}

impl Failed {
    fn exit(&self) -> Exit {
        match self {
            Self::Refused(_) => Exit::Refused,
            Self::Endpoint(_) => Exit::RuntimeAway,
            Self::Runtime(error) if error.class == Class::Unavailable => Exit::RuntimeAway,
            Self::Runtime(_) => Exit::Failed,
            Self::Connection(error) => error.exit(),
            Self::Cluster(error) => match error.class() {
                Class::Unavailable | Class::NotSent => Exit::ClusterAway,
                Class::Gone | Class::Denied | Class::Final => Exit::Refused,
                Class::NameTaken | Class::Credentials | Class::Refused => Exit::Failed,
            },
        }
    }
}

impl HookCommand {
    /// Runs the command and returns its exit code. Errors go to standard error.
    pub async fn run(self) -> Exit {
        let ended = match self.verb {
            Verb::Test(args) => test::run(*args).await,
            Verb::Check(args) => check(&args),
        };
        ended.unwrap_or_else(|failed| {
            message(&format!("inplace: {failed}"));
            failed.exit()
        })
    }
}

/// Validates the template as far as possible without a measurement.
fn check(args: &CheckArgs) -> Result<Exit, Failed> {
    let template = read(&args.file)?;
    let name = template.metadata.name.unwrap_or_default();
    let open: Vec<_> = template.spec.args.iter().filter(|arg| arg.value.is_none()).collect();
    let problems: Vec<_> = problems(&template.spec).iter().map(ToString::to_string).collect();
    if !problems.is_empty() {
        return Err(Failed::Refused(format!("{}: {}", args.file.display(), problems.join("\n"))));
    }
    output::line(&format!("HookTemplate {name} is valid: {} metric(s)", template.spec.metrics.len()));
    if !open.is_empty() {
        let names: Vec<_> = open.iter().map(|arg| arg.name.as_str()).collect();
        output::line(&format!("arguments to set for each run: {}", names.join(", ")));
    }
    Ok(Exit::Done)
}

/// Reads one template from a file or from standard input (`-`). Unknown fields are errors.
fn read(file: &Path) -> Result<HookTemplate, Failed> {
    let refused = |why: &dyn std::fmt::Display| Failed::Refused(format!("{}: {why}", file.display()));
    let text = if file == Path::new("-") {
        std::io::read_to_string(std::io::stdin().lock().take(1 << 21))
    } else {
        std::fs::read_to_string(file)
    };
    hook_manifest::read(&text.map_err(|error| refused(&error))?).map_err(|error| refused(&error))
}
