//! What a hook asks, once more, when an earlier process began it. The journal does not hold it: a URL, a header or a body may
//! be a token. The template does, and has to say what it said then.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::api::hook_run::HookRunSpec;
use crate::node::hook::Templates;
use crate::operation::hook::Hook;
use crate::process::log::chain;

/// How long a template that is not there, or says something else, may take to appear: files are read beside this.
const APPEARS: Duration = Duration::from_secs(10);
/// Between two looks.
const PAUSE: Duration = Duration::from_secs(1);

/// The whole of what `hook` measures, or why nobody knows it any more. Waits for an API server that is away.
pub(super) async fn restore(
    templates: &Templates,
    hook: &Hook,
    namespace: &str,
) -> Result<HookRunSpec, String> {
    if !hook.lacks_providers() {
        return Ok(hook.spec.clone());
    }
    let until = Instant::now() + APPEARS;
    loop {
        match templates.get(namespace, &hook.template).await {
            Ok(template) => {
                if let Some(spec) = template.and_then(|template| hook.restored(&template)) {
                    return Ok(spec);
                }
                if Instant::now() >= until {
                    return Err(format!(
                        "HookTemplate {} was changed or removed after this hook had begun, and the process that \
                         knew it has ended: ask again",
                        hook.template
                    ));
                }
            }
            Err(error) if error.class().is_away() => {
                tracing::warn!(
                    hook = hook.template,
                    error = chain(&error),
                    "the hook waits for its template"
                );
            }
            Err(error) => return Err(error.to_string()),
        }
        sleep(PAUSE).await;
    }
}
