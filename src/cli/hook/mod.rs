//! `inplace hook ...`: tries a `HookTemplate` out before anything depends on it.
//!
//! Needs no cluster; changes nothing but what the hook itself does.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use crate::api::hook_manifest;
use crate::api::hook_template::HookTemplate;
use crate::cli::exit::Exit;
use crate::cli::output::{self, message};
use crate::cluster;
use crate::hook::check;
use crate::operation::effect::Class;

mod explain;
mod pod;
mod test;

/// Try hooks out
#[derive(Debug, Args)]
pub struct HookCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run a HookTemplate from a file, and explain its verdict
    Test(Box<test::TestArgs>),
    /// Tell whether a HookTemplate is valid, and measure nothing
    Check(CheckArgs),
}

/// Arguments of `hook check`.
#[derive(Debug, Args)]
struct CheckArgs {
    /// The HookTemplate; `-` for standard input
    #[arg(short, long, value_name = "TEMPLATE.YAML")]
    file: PathBuf,
}

/// Why a hook was not run.
#[derive(Debug, thiserror::Error)]
enum Failed {
    /// It cannot be run as written.
    #[error("{0}")]
    Refused(String),
    /// There is no such runtime.
    #[error(transparent)]
    Endpoint(#[from] crate::cri::endpoint::NoEndpoint),
    /// The runtime's no, or its silence.
    #[error(transparent)]
    Runtime(#[from] crate::cri::error::Error),
    /// The API server's no, or its silence.
    #[error(transparent)]
    Cluster(#[from] cluster::error::Error),
}

impl Failed {
    fn exit(&self) -> Exit {
        match self {
            Self::Refused(_) => Exit::Refused,
            Self::Endpoint(_) => Exit::RuntimeAway,
            Self::Runtime(error) if error.class == Class::Away => Exit::RuntimeAway,
            Self::Runtime(_) => Exit::Failed,
            Self::Cluster(error) => match error.class() {
                Class::Away | Class::Unreached => Exit::ClusterAway,
                Class::Gone | Class::Denied | Class::Final => Exit::Refused,
                Class::NameTaken | Class::Credentials | Class::Refused => Exit::Failed,
            },
        }
    }
}

impl HookCommand {
    /// Runs the command to its end.
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

/// Everything that can be known before the first measurement.
fn check(args: &CheckArgs) -> Result<Exit, Failed> {
    let template = read(&args.file)?;
    let name = template.metadata.name.unwrap_or_default();
    let open: Vec<_> = template.spec.args.iter().filter(|arg| arg.value.is_none()).collect();
    let spec = check::template(&template.spec);
    let spec = spec.map_err(|invalid| Failed::Refused(format!("{}: {invalid}", args.file.display())))?;
    output::line(&format!("HookTemplate {name} is valid: {} metric(s)", spec.metrics.len()));
    if !open.is_empty() {
        let names: Vec<_> = open.iter().map(|arg| arg.name.as_str()).collect();
        output::line(&format!("to be given for each run: {}", names.join(", ")));
    }
    Ok(Exit::Done)
}

/// Reads a template strictly.
fn read(file: &Path) -> Result<HookTemplate, Failed> {
    let refused = |why: &dyn std::fmt::Display| Failed::Refused(format!("{}: {why}", file.display()));
    let text = if file == Path::new("-") {
        std::io::read_to_string(std::io::stdin().lock().take(1 << 21))
    } else {
        std::fs::read_to_string(file)
    };
    hook_manifest::read(&text.map_err(|error| refused(&error))?).map_err(|error| refused(&error))
}
