//! The providers: each makes one measurement of a metric.
//!
//! Each bounds its own time and size. Must not judge a value or repeat a measurement: the schedule decides when
//! to measure again.
//!
//! The errors are texts without a source: they become the message of the measurement, and nothing else reads them.
//! The errors of the HTTP client and of the runtime below them must not be passed on or logged, because they name
//! the whole URL or the command, which may contain secrets.

use std::time::Duration;

use crate::api::hook_template::{Argument, Metric, Provider};
use crate::hook::measured::Measured;
use crate::hook::place::Place;
use crate::hook::settings::Settings;
use crate::hook::template;

mod exec;
mod http;
mod kubernetes;
mod prometheus;
mod web;

/// Makes one measurement.
pub(super) async fn measure(
    metric: &Metric,
    args: &[Argument],
    place: &Place,
    settings: &Settings,
) -> Measured {
    let (namespace, policy) = (&place.namespace, &settings.address_policy);
    let measured = match &metric.provider {
        Provider { web: Some(web), .. } => web::measure(web, args, namespace, policy).await,
        Provider { prometheus: Some(prometheus), .. } => {
            prometheus::measure(prometheus, args, namespace, policy).await
        }
        Provider { kubernetes: Some(kubernetes), .. } => {
            kubernetes::measure(kubernetes, args, place, settings).await
        }
        Provider { exec: Some(exec), .. } => exec::measure(exec, args, place, settings).await,
        Provider { web: None, prometheus: None, kubernetes: None, exec: None } => {
            Err("no provider is named".to_owned())
        }
    };
    measured.unwrap_or_else(Measured::Error)
}

/// A field with its arguments inserted.
fn rendered(field: &str, text: &str, args: &[Argument]) -> Result<String, String> {
    template::render(text, args).map_err(|error| format!("{field}: {error}"))
}

/// The given limit; 0 means none.
fn seconds(given: Option<i32>) -> Option<Duration> {
    u64::try_from(given?).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
}
