//! Logging: one line per event on standard error, as text for people or JSON for machines.
//!
//! Log lines must not contain environment values or tokens; the callers are responsible for that.

use tracing_subscriber::EnvFilter;

use crate::process::color;

/// Silences a module that logs each error that it also returns. The caller logs that error, once.
const QUIET: &str = "kube_client::client::builder=off";

/// The flags about logging.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Logging")]
pub struct LogArgs {
    // kube logs every failed call as an error of its own; the caller logs the failure, once.
    /// What to log: `info`, `debug`, or per module as in `warn,inplace::node=debug`
    #[arg(
        long,
        env = "INPLACE_LOG",
        default_value = "info,kube_client=off",
        global = true,
        value_name = "FILTER"
    )]
    pub log: String,
    /// Log one JSON object per line instead of text
    #[arg(long, env = "INPLACE_LOG_JSON", global = true)]
    pub log_json: bool,
}

/// Starts logging. A second call has no effect.
///
/// # Errors
/// When the filter cannot be parsed.
pub fn start(args: &LogArgs) -> Result<(), tracing_subscriber::filter::ParseError> {
    let filter = EnvFilter::try_new(format!("{QUIET},{}", args.log))?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(color::is_wanted(&std::io::stderr()))
        .with_target(false);
    // A second call fails because a logger is already installed, which is intended.
    let _ = if args.log_json { lines.json().try_init() } else { lines.try_init() };
    Ok(())
}

/// An error and its chain of causes, on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
