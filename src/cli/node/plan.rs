//! `node plan`: prints what a request would do, with which engine and why, and its warnings. Touches nothing.

use clap::Args;

use crate::api::image::ImageRef;
use crate::api::request::{ContainerRequest, Request};
use crate::cli::exit::Exit;
use crate::cli::node::{Failed, Format, PodName, find, open_node};
use crate::cli::output;
use crate::node::settings::NodeArgs;
use crate::operation::plan::{Plan, Planned};

/// Arguments of `node plan`.
#[derive(Debug, Args)]
pub(super) struct PlanArgs {
    /// The pod
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pod: PodName,
    /// Containers to restart
    #[arg(short, long, value_name = "NAME", value_delimiter = ',')]
    container: Vec<String>,
    /// Containers to restart, or to swap to an image
    #[arg(value_name = "CONTAINER[=IMAGE]", value_parser = item, required_unless_present = "container")]
    items: Vec<ContainerRequest>,
}

fn item(text: &str) -> Result<ContainerRequest, String> {
    let Some((name, image)) = text.split_once('=') else {
        return Ok(ContainerRequest { name: text.to_owned(), image: None });
    };
    ImageRef::parse(image).map_err(|error| error.to_string())?;
    Ok(ContainerRequest { name: name.to_owned(), image: Some(image.to_owned()) })
}

pub(super) async fn run(settings: &NodeArgs, format: Format, args: PlanArgs) -> Result<Exit, Failed> {
    let PlanArgs { pod, container, items } = args;
    let mut targets: Vec<_> =
        container.into_iter().map(|name| ContainerRequest { name, image: None }).collect();
    targets.extend(items);
    let node = open_node(settings)?;
    let pod = find(&node, &pod).await?;
    let plan = node.plan(&pod, Request::new("plan".to_owned(), targets)).await?;
    let mut pulls = Vec::new();
    for planned in &plan.containers {
        if let Some(image) = &planned.image {
            pulls.push((image.clone(), node.client.image(image, false).await?.is_some()));
        }
    }
    match format {
        Format::Json => output::json(&plan),
        Format::Text => print(&plan, &pulls),
    }
    Ok(Exit::Done)
}

fn print(plan: &Plan, pulls: &[(String, bool)]) {
    output::line(&format!("pod {}: sandbox {} stays", plan.pod, short(&plan.sandbox_id)));
    for planned in &plan.containers {
        output::line(&format!("  {}", headline(planned)));
        output::line(&format!("      here: {}: {}", planned.engine, planned.why));
        if let (Some(engine), Some(why)) = (planned.in_cluster, planned.in_cluster_why) {
            output::line(&format!("      in a cluster: {engine}: {why}"));
        }
    }
    for (image, present) in pulls {
        let where_ =
            if *present { "is on the node" } else { "is pulled first, while all containers keep running" };
        output::line(&format!("  image {image} {where_}"));
    }
    let steps = plan.steps.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    output::line(&format!("  steps: {steps}"));
    for warning in &plan.warnings {
        output::line(&format!("  note: {warning}"));
    }
    output::line("nothing was touched");
}

fn headline(planned: &Planned) -> String {
    let from = &planned.from;
    let image = match &planned.image {
        Some(image) => format!("{} -> {image}", from.image),
        None => from.image.clone(),
    };
    format!("{} {} (attempt {} now): {image}", planned.action, planned.name, from.attempt)
}

fn short(id: &str) -> &str {
    id.get(..12).unwrap_or(id)
}
