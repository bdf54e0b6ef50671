//! `inplace migrate check`: what a takeover of workloads from a bk-bcs operator would change, before it is made. Only reads.

mod findings;
mod hooks;
mod server;

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::cli::cluster::{ClusterArgs, Failed};
use crate::cli::exit::Exit;
use crate::cli::form::{Data, DataParser, HasName};
use crate::cli::migrate::findings::{Finding, Level};
use crate::cli::migrate::server::MigrationClient;
use crate::cli::output::{self, message};

/// Prepare the takeover of workloads from a bk-bcs operator
#[derive(Debug, Args)]
pub struct MigrateCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show what a takeover would change; changes nothing. Exits with 3 if anything should be resolved first
    Check(CheckArgs),
}

/// Arguments of `migrate check`.
#[derive(Debug, Args)]
struct CheckArgs {
    /// The workloads of all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// The namespace of the bk-bcs operators
    #[arg(long, value_name = "NAME", default_value = "bcs-system")]
    operator_namespace: String,
    /// Form of the result
    #[arg(short, long, value_name = "FORM", value_parser = DataParser)]
    output: Option<Data>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// The findings about one object.
#[derive(Debug, Serialize)]
struct Report {
    /// For example `shop/GameDeployment/web`, or the cluster.
    about: String,
    findings: Vec<Finding>,
}

impl HasName for Report {
    fn full_name(&self) -> String {
        self.about.clone()
    }
}

impl MigrateCommand {
    /// Runs the command and returns its exit code.
    pub async fn run(self) -> Exit {
        let Verb::Check(args) = self.verb;
        check(args).await.unwrap_or_else(|failed| {
            message(&format!("inplace: {failed}"));
            failed.exit()
        })
    }
}

async fn check(args: CheckArgs) -> Result<Exit, Failed> {
    let (client, namespace) = args.cluster.connect().await?;
    let server = MigrationClient::new(client, Some(namespace).filter(|_| !args.all_namespaces));
    let now = crate::process::clock::now();
    let leaders = server.leaders(&args.operator_namespace).await?;
    let mut reports = vec![Report {
        about: format!("operators in namespace {}", args.operator_namespace),
        findings: findings::operators(&leaders, now),
    }];
    let objects = server.objects().await?;
    for workload in &objects.workloads {
        let mut findings = findings::workload(workload, &objects.of(workload), now);
        let problems = workload.spec.iter().flat_map(|spec| hooks::problems(spec, &objects.templates));
        findings.extend(problems.map(Finding::resolve));
        reports.push(Report {
            about: format!("{}/{}/{}", workload.namespace, workload.kind, workload.name),
            findings,
        });
    }
    let blocked =
        reports.iter().flat_map(|report| &report.findings).any(|found| found.level == Level::Resolve);
    match args.output {
        Some(form) => form.print_list(&reports),
        None => print(&reports),
    }
    Ok(if blocked { Exit::Refused } else { Exit::Done })
}

fn print(reports: &[Report]) {
    for report in reports {
        output::line(&report.about);
        if report.findings.is_empty() {
            output::line("  nothing changes");
        }
        for found in &report.findings {
            output::line(&format!("  {}: {}", found.level, found.message));
        }
    }
}
