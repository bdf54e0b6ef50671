//! Restores the specification of a hook that an earlier process started. The journal does not hold it, because a
//! URL, a header or a body may contain a token. It is read from the template again, which must have the same content
//! as before.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::api::hook_run::HookRunSpec;
use crate::failure::Class;
use crate::node::hook::Templates;
use crate::operation::hook::Hook;
use crate::process::log::chain;

/// How long to wait for a template that is missing or differs: template files are read concurrently.
const APPEARS: Duration = Duration::from_secs(10);
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_secs(1);

/// The complete specification of `hook`, or the reason why it cannot be restored. Waits while the API server is
/// unreachable.
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
                        "HookTemplate {} was changed or deleted after this hook had started, and the process \
                         that had read it has ended: make a new request",
                        hook.template
                    ));
                }
            }
            // An API server that has just started denies what it permits a moment later.
            Err(error)
                if error.class().is_unavailable()
                    || error.class() == Class::Denied && Instant::now() < until =>
            {
                tracing::warn!(
                    hook = hook.template,
                    error = chain(&error),
                    "the HookTemplate cannot be read: retrying"
                );
            }
            Err(error) => return Err(error.to_string()),
        }
        sleep(PAUSE).await;
    }
}
