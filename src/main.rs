//! Selects the role, builds the async runtime for it, and maps the result to an exit code.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ColorChoice, Command, CommandFactory, FromArgMatches, Parser, Subcommand};
use inplace::cli::exit::Exit;
use inplace::cli::{completion, examples};
use inplace::process::color::ColorArgs;
use inplace::process::log::{self, LogArgs};

#[cfg(target_os = "linux")]
mod linux;
#[cfg(test)]
mod reference;

/// Number of threads for blocking work. The largest user is the journal's disk: at most 12 threads for writes and
/// 4 for the rest. Containers' files take 3, the disk of the images 3, the name lookups of hooks 4. The remaining
/// ones stay free for others, such as the lookup of the API server's name, when a disk or a name server hangs.
const BLOCKING_THREADS: usize = 30;
/// How long an idle thread waits for more work before it ends.
const THREAD_RESTS: Duration = Duration::from_secs(1);
/// The stack of a thread. It suffices for name lookups and for writing files.
const THREAD_STACK: usize = 512 << 10;
/// How long calls in progress may continue when the process ends.
const LAST_CALLS: Duration = Duration::from_millis(500);

/// Restart or update one container of a running pod, in place, in about a tenth of a second.
#[derive(Debug, Parser)]
#[command(name = "inplace", version, about, max_term_width = 100)]
struct Inplace {
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    color: ColorArgs,
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    #[command(flatten)]
    Pod(Box<inplace::cli::pod::PodCommand>),
    #[cfg(target_os = "linux")]
    Node(inplace::cli::node::NodeCommand),
    Hook(inplace::cli::hook::HookCommand),
    Rollout(inplace::cli::workload_rollout::RolloutCommand),
    Migrate(inplace::cli::migrate::MigrateCommand),
    Top(inplace::cli::top::TopCommand),
    Dashboard(inplace::cli::dashboard::DashboardCommand),
    Version(inplace::cli::version::VersionCommand),
    #[cfg(target_os = "linux")]
    #[command(flatten)]
    Linux(linux::LinuxRole),
    Crds(inplace::cli::crds::CrdsCommand),
    Completion(inplace::cli::completion::CompletionCommand),
    #[command(hide = true)]
    Man(inplace::cli::man::ManCommand),
}

fn main() -> ExitCode {
    // The TLS provider of hooks and handlers is selected explicitly, so that it does not depend on crate
    // features.
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        return fail("a TLS provider is already installed");
    }
    match completion::answer(|| command(None)) {
        Ok(true) => return Exit::Done.into(),
        Ok(false) => {}
        Err(error) => return fail(&error.to_string()),
    }
    let matches = command(std::env::args_os().next()).color(help_color(std::env::args_os())).get_matches();
    let Inplace { log, color, role } =
        Inplace::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    color.start();
    if let Err(error) = log::start(&log) {
        return fail(&format!("--log: {error}"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(THREAD_RESTS)
        .thread_stack_size(THREAD_STACK)
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("the async runtime cannot be created: {error}")),
    };
    let code = match role {
        Role::Pod(command) => runtime.block_on(command.run()).into(),
        #[cfg(target_os = "linux")]
        Role::Node(command) => runtime.block_on(command.run()).into(),
        Role::Hook(command) => runtime.block_on(command.run()).into(),
        Role::Rollout(command) => runtime.block_on(command.run()).into(),
        Role::Migrate(command) => runtime.block_on(command.run()).into(),
        Role::Top(command) => runtime.block_on(command.run()).into(),
        Role::Dashboard(command) => runtime.block_on(command.run()).into(),
        Role::Version(command) => runtime.block_on(command.run()).into(),
        Role::Crds(command) => command.run().into(),
        Role::Completion(command) => command.run().into(),
        Role::Man(man) => man.run(command(None)).into(),
        #[cfg(target_os = "linux")]
        Role::Linux(role) => role.run(&runtime),
    };
    // A call that hangs on a disk must not keep the process from ending.
    runtime.shutdown_timeout(LAST_CALLS);
    code
}

/// The whole command line. If the file is named `kubectl-inplace`, the help says `kubectl inplace`.
fn command(called: Option<OsString>) -> Command {
    let called = called.map(PathBuf::from);
    let is_plugin = called.is_some_and(|path| path.file_stem().is_some_and(|name| name == "kubectl-inplace"));
    let command = Inplace::command();
    if is_plugin {
        examples::with_help(command.bin_name("kubectl inplace"), "kubectl inplace")
    } else {
        examples::with_help(command, "inplace")
    }
}

/// The colour of the help. It is printed before the flags are known, so the words are searched for the flag.
fn help_color(mut words: impl Iterator<Item = OsString>) -> ColorChoice {
    while let Some(word) = words.next() {
        let value = match word.to_str() {
            Some("--color") => words.next().and_then(|value| value.into_string().ok()),
            Some("--") => break,
            Some(word) => word.strip_prefix("--color=").map(str::to_owned),
            None => None,
        };
        match value.as_deref() {
            Some("always") => return ColorChoice::Always,
            Some("never") => return ColorChoice::Never,
            _ => {}
        }
    }
    ColorChoice::Auto
}

#[expect(
    clippy::print_stderr,
    reason = "the error with which the process ends is for its user, with or without a log"
)]
fn fail(message: &str) -> ExitCode {
    eprintln!("inplace: {message}");
    Exit::Failed.into()
}
