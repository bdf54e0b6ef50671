//! `rollout history`: prints the revisions of a workload, or the template of one revision. Reads only.

use clap::Args;
use serde::Serialize;

use crate::api::pod_template::PodTemplate;
use crate::cli::cluster::Failed;
use crate::cli::exit::Exit;
use crate::cli::form::HasName;
use crate::cli::output::{self, line};
use crate::cli::workload_rollout::About;
use crate::cli::workload_rollout::past::{self, Past, images, numbered};
use crate::workload::revision;

/// Arguments of `rollout history`.
#[derive(Debug, Args)]
pub(super) struct HistoryArgs {
    /// Show the template of this revision
    #[arg(long, value_name = "N")]
    revision: Option<i64>,
    #[command(flatten)]
    about: About,
}

/// JSON output for one revision.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    revision: i64,
    name: String,
    images: String,
    change_cause: Option<String>,
    /// True when the workload's current template equals this revision.
    current: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    template: Option<PodTemplate>,
}

impl HasName for Entry {
    fn full_name(&self) -> String {
        format!("controllerrevision.apps/{}", self.name)
    }
}

pub(super) async fn run(args: HistoryArgs) -> Result<Exit, Failed> {
    let HistoryArgs { revision: number, about } = args;
    about.no_rollout("revisions")?;
    let (server, workload) = about.open().await?;
    let past = past::of(&workload.spec.uid, server.revisions().await?);
    let entry = |past: &Past| Entry {
        revision: past.revision.number,
        name: past.revision.name.clone(),
        images: images(&past.revision.template),
        change_cause: past.cause.clone(),
        current: revision::equal(&past.revision.template, &workload.spec.template),
        template: None,
    };
    if let Some(number) = number {
        let found = numbered(&past, number);
        let found = found.map_err(|why| Failed::Refused(format!("{}: {why}", workload.name)))?;
        let template = &found.revision.template;
        if let Some(form) = &about.output {
            form.print(&Entry { template: Some(template.clone()), ..entry(found) });
        } else {
            line(&format!("{} with revision #{number}", workload.name));
            output::yaml(template);
        }
        return Ok(Exit::Done);
    }
    let entries: Vec<_> = past.iter().map(entry).collect();
    if let Some(form) = &about.output {
        form.print_list(&entries);
        return Ok(Exit::Done);
    }
    line(&workload.name.to_string());
    let rows = entries.iter().map(|entry| {
        let cause = entry.change_cause.as_deref().unwrap_or("<none>");
        vec![entry.revision.to_string(), entry.name.clone(), entry.images.clone(), cause.to_owned()]
    });
    output::table(&["REVISION", "NAME", "IMAGES", "CHANGE-CAUSE"], &rows.collect::<Vec<_>>());
    match entries.iter().rfind(|entry| entry.current) {
        Some(entry) => line(&format!("now: revision {}", entry.revision)),
        None => line("now: a template that has no revision yet"),
    }
    Ok(Exit::Done)
}
