//! The flags for the connection to the API server, with kubectl's names, and the timeout of a call. Makes no call.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use clap::Args;
use kube::Client;

use crate::cli::cluster::Failed;
use crate::cli::span::Seconds;
use crate::cluster::client::{ConnectOptions, connect};
use crate::cluster::overrides::{Overrides, Token};
use crate::failure::Class;

/// Timeout of one API call without `--request-timeout`.
const CALL: Seconds = Seconds(10);
/// The timeout that stands for none.
const NONE: Duration = Duration::from_secs(10 * 365 * 86_400);
/// The value of `--request-timeout`. A process runs one command.
static GIVEN: OnceLock<Seconds> = OnceLock::new();

/// The flags for the connection, as in kubectl.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Cluster")]
pub(super) struct ConnectionArgs {
    /// The context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// The kubeconfig [default: $KUBECONFIG, ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The cluster entry of the kubeconfig [default: the context's]
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    cluster: Option<String>,
    /// The user entry of the kubeconfig [default: the context's]
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    user: Option<String>,
    /// The URL of the API server; no kubeconfig is needed then [default: the cluster's]
    #[arg(short, long, value_name = "URL", value_parser = url, hide_short_help = true)]
    server: Option<String>,
    /// The bearer token; it replaces the user's credentials. Other users of this machine can see it in the list of processes
    #[arg(long, value_name = "TOKEN", value_parser = token, hide_short_help = true)]
    token: Option<Token>,
    /// The user to act as, which needs the right to impersonate it
    #[arg(long = "as", value_name = "USER", hide_short_help = true)]
    impersonate: Option<String>,
    /// The groups to act as; may be repeated
    #[arg(long = "as-group", value_name = "GROUP", requires = "impersonate", hide_short_help = true)]
    impersonate_groups: Vec<String>,
    /// The uid to act as
    #[arg(long = "as-uid", value_name = "UID", requires = "impersonate", hide_short_help = true)]
    impersonate_uid: Option<String>,
    /// Time until a single call must have been answered; 0 for no limit. A watch has no limit [default: 10s]
    #[arg(long, value_name = "TIME", hide_short_help = true)]
    request_timeout: Option<Seconds>,
    /// The certificates that the server's certificate is checked against [default: the cluster's]
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    certificate_authority: Option<PathBuf>,
    /// The certificate of the client [default: the user's]
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    client_certificate: Option<PathBuf>,
    /// The key of the client's certificate [default: the user's]
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    client_key: Option<PathBuf>,
    /// The name in the server's certificate [default: the host of the URL]
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    tls_server_name: Option<String>,
    /// Do not check the server's certificate: anyone in between can read and change everything
    #[arg(long, conflicts_with = "certificate_authority", hide_short_help = true)]
    insecure_skip_tls_verify: bool,
}

impl ConnectionArgs {
    /// True if the flags name a server or a kubeconfig.
    pub(super) fn is_given(&self) -> bool {
        self.kubeconfig.is_some() || self.context.is_some() || self.server.is_some()
    }

    /// The flags that name the cluster, as they were given; no credentials.
    pub(super) fn repeated(&self) -> String {
        let path = |path: &PathBuf| path.display().to_string();
        let given = [
            ("kubeconfig", self.kubeconfig.as_ref().map(path)),
            ("context", self.context.clone()),
            ("cluster", self.cluster.clone()),
            ("server", self.server.clone()),
        ];
        let given = given.into_iter().filter_map(|(flag, value)| Some((flag, value?)));
        given.fold(String::new(), |flags, (flag, value)| format!("{flags} --{flag} {}", quoted(&value)))
    }

    /// Connects as kubectl does, and returns the namespace of the kubeconfig's context.
    pub(super) async fn connect(&self) -> Result<(Client, String), Failed> {
        if let Some(limit) = self.request_timeout {
            // A second connection of the process has the same flags.
            let _ = GIVEN.set(limit);
        }
        connect(&self.options()).await.map_err(|error| match error.class() {
            // Nothing was asked yet: the kubeconfig or a flag is wrong.
            Class::Final => Failed::Usage(error.to_string()),
            _ => Failed::Cluster(error),
        })
    }

    fn options(&self) -> ConnectOptions {
        let Self {
            context,
            kubeconfig,
            cluster,
            user,
            server,
            token,
            impersonate,
            impersonate_groups,
            impersonate_uid,
            request_timeout: _,
            certificate_authority,
            client_certificate,
            client_key,
            tls_server_name,
            insecure_skip_tls_verify,
        } = self.clone();
        let overrides = Overrides {
            cluster,
            user,
            server,
            tls_server_name,
            certificate_authority,
            insecure: insecure_skip_tls_verify,
            token,
            client_certificate,
            client_key,
            impersonate,
            impersonate_uid,
            impersonate_groups,
        };
        ConnectOptions { kubeconfig, context, overrides }
    }
}

/// `value` as one word of a command for a shell.
pub(super) fn quoted(value: &str) -> Cow<'_, str> {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || "@%+=:,./_-".contains(c);
    if !value.is_empty() && value.chars().all(is_safe) {
        return Cow::Borrowed(value);
    }
    Cow::Owned(format!("'{}'", value.replace('\'', r"'\''")))
}

/// The timeout of one API call.
pub(super) fn call_limit() -> Duration {
    match GIVEN.get().unwrap_or(&CALL) {
        Seconds(0) => NONE,
        Seconds(seconds) => Duration::from_secs(u64::from(*seconds)),
    }
}

fn token(text: &str) -> Result<Token, &'static str> {
    Token::new(text.to_owned())
}

fn url(text: &str) -> Result<String, &'static str> {
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    match host {
        Some(host) if !host.is_empty() => Ok(text.to_owned()),
        _ => Err("write a URL that begins with https:// or http://"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_repeated_as_words_of_a_shell() {
        let args = ConnectionArgs {
            kubeconfig: Some("/my files/it's".into()),
            context: Some("arn:aws:eks:prod".to_owned()),
            cluster: Some("$(id)".to_owned()),
            user: Some("admin".to_owned()),
            server: Some(String::new()),
            ..ConnectionArgs::default()
        };
        assert_eq!(
            args.repeated(),
            r" --kubeconfig '/my files/it'\''s' --context arn:aws:eks:prod --cluster '$(id)' --server ''"
        );
    }
}
