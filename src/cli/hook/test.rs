//! `hook test`: runs a template once, in this process. Creates no HookRun.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::api::hook_run::{HookPhase, HookRunStatus};
use crate::api::hook_template::HookTemplateSpec;
use crate::cli::connection::ConnectionArgs;
use crate::cli::exit::Exit;
use crate::cli::form::{Form, FormParser, HasName};
use crate::cli::hook::explain::Explain;
use crate::cli::hook::{Failed, pod, read};
use crate::cli::named_value::NamedValue;
use crate::cli::output;
use crate::cluster::server::Server;
use crate::cri::client::Client;
use crate::cri::endpoint::Endpoint;
use crate::hook::args::Injected;
use crate::hook::check;
use crate::hook::executor::Executor;
use crate::hook::place::Place;
use crate::hook::settings::HookArgs;

/// Arguments of `hook test`.
#[derive(Debug, Args)]
pub(super) struct TestArgs {
    /// The HookTemplate; `-` for standard input
    #[arg(short, long, value_name = "TEMPLATE.YAML")]
    file: PathBuf,
    /// An argument of the template; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    arg: Vec<NamedValue>,
    /// Measure each metric once and immediately, instead of by its schedule
    #[arg(long)]
    once: bool,
    /// Form of the result
    #[arg(short, long, value_name = "FORM", value_parser = FormParser::TEXT, default_value = "text")]
    output: Form,
    #[command(flatten)]
    about: AboutArgs,
    #[command(flatten)]
    hooks: HookArgs,
}

/// The flags about the pod of the hook.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Pod")]
pub(super) struct AboutArgs {
    /// The pod of the hook: it provides name, addresses and container names, and `kubernetes` and `exec` use it
    #[arg(long, value_name = "NAME")]
    pub(super) pod: Option<String>,
    /// Its namespace [default: the context's; with --runtime-endpoint: default]
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// Socket of this node's runtime, for `exec`; without a kubeconfig the pod is read from it as well
    #[arg(long, env = "INPLACE_RUNTIME_ENDPOINT", value_name = "unix:///PATH")]
    runtime_endpoint: Option<String>,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// The status of a HookRun, as a result with a name.
#[derive(Serialize)]
#[serde(transparent)]
struct Ended<'a> {
    status: &'a HookRunStatus,
    #[serde(skip)]
    template: &'a str,
}

impl HasName for Ended<'_> {
    fn full_name(&self) -> String {
        format!("hooktemplate.tkex.tencent.com/{}", self.template)
    }
}

/// The clients that the hook may use, and the pod that it runs for.
struct Context {
    runtime: Option<Client>,
    server: Option<Server>,
    place: Place,
    injected: Option<Injected>,
}

pub(super) async fn run(args: TestArgs) -> Result<Exit, Failed> {
    let TestArgs { file, arg, once, output, about, hooks } = args;
    let template = read(&file)?;
    let name = template.metadata.name.unwrap_or_default();
    let mut template = template.spec;
    if once {
        once_each(&mut template);
    }
    let context = context(about).await?;
    let given: Vec<_> = arg.into_iter().map(|NamedValue(arg)| arg).collect();
    let refused = |why: String| Failed::Refused(format!("{}: {why}", file.display()));
    let spec = check::prepare(&template, &given, context.injected.as_ref())
        .map_err(|invalid| refused(invalid.to_string()))?;
    if let Some(orphan) = given.iter().find(|given| spec.args.iter().all(|arg| arg.name != given.name)) {
        return Err(refused(format!("the hook has no argument {}", orphan.name)));
    }
    // The command runs on the user's own machine, so the network restrictions of a node's hooks do not apply.
    let hooks = hooks.at_own_machine();
    let executor = Executor::new(hooks.settings("this command", context.runtime, context.server));
    let mut explain = Explain::new(&spec);
    let status = executor
        .run(&spec, HookRunStatus::default(), &context.place, |status| {
            if matches!(output, Form::Table) {
                explain.updates(status).iter().for_each(|text| output::line(text));
            }
        })
        .await;
    match output {
        Form::Table | Form::Wide => explain.verdict(&status).iter().for_each(|text| output::line(text)),
        Form::Data(form) => form.print(&Ended { status: &status, template: &name }),
    }
    Ok(if status.phase == Some(HookPhase::Successful) { Exit::Done } else { Exit::Failed })
}

/// Makes one measurement decide: no delay, no interval, no tolerated failure.
fn once_each(template: &mut HookTemplateSpec) {
    for metric in &mut template.metrics {
        metric.interval = None;
        metric.initial_delay = None;
        metric.count = Some(1);
        metric.failure_limit = None;
        metric.successful_limit = None;
        metric.inconclusive_limit = None;
        metric.consecutive_successful_limit = None;
        metric.consecutive_error_limit = Some(0);
    }
}

async fn context(about: AboutArgs) -> Result<Context, Failed> {
    let AboutArgs { pod, namespace, runtime_endpoint, connection } = about;
    let runtime = match runtime_endpoint {
        Some(given) => Some(Client::new(&Endpoint::parse(&given)?, None)),
        None => None,
    };
    let named = connection.is_given();
    if pod.is_none() && !named {
        let place =
            Place { namespace: namespace.unwrap_or_else(|| "default".to_owned()), ..Place::default() };
        return Ok(Context { runtime, server: None, place, injected: None });
    }
    if let (Some(client), Some(name), false) = (&runtime, &pod, named) {
        let namespace = namespace.as_deref().unwrap_or("default");
        let (place, injected) = pod::on_node(client, namespace, name).await?;
        return Ok(Context { runtime, server: None, place, injected: Some(injected) });
    }
    let (client, default) = connection.connect().await?;
    let namespace = namespace.unwrap_or(default);
    let (place, injected) = match &pod {
        Some(name) => {
            let (place, injected) = pod::in_cluster(&client, &namespace, name).await?;
            (place, Some(injected))
        }
        None => (Place { namespace, ..Place::default() }, None),
    };
    Ok(Context { runtime, server: Some(Server::new(client)), place, injected })
}
