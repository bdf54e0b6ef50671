//! Writes the Events about workloads (of any kind) and rollouts, with aggregation: a repeated event increases the
//! count of the Event that exists, and of similar events (same object, same reason) only the first few get an
//! Event of their own.
//!
//! The reasons are in `workload::action`, `workload::canary`, `rollout::report`, `config_restart` and
//! `workloads::revisions`. Losing an event here does no harm: events are for people. All state that decisions depend on is in the
//! objects.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use tokio::time::Instant;

use crate::cluster::event::ObjectEvent;
use crate::cluster::server::Server;
use crate::podtask::write::Event;
use crate::process::clock;

/// Within one window, at most this many messages with the same object and reason get an Event of their own.
const OWN_LINES: usize = 10;
const WINDOW: Duration = Duration::from_secs(600);
/// Minimum time between two writes of the same Event.
const PAUSE: Duration = Duration::from_secs(10);

/// One Event that was written.
#[derive(Debug)]
struct WrittenEvent {
    name: String,
    count: i32,
    began: Instant,
    written: Instant,
}

/// An object's uid, a reason and the message. The empty message is the aggregate of all further similar events.
type EventKey = (String, &'static str, String);

/// The write that an event leads to.
#[derive(Debug, PartialEq, Eq)]
enum Write {
    Create,
    Count(String, i32),
    Nothing,
}

/// Writes Events and remembers those of the current window.
#[derive(Debug)]
pub(super) struct Events {
    server: Server,
    host: String,
    lines: Mutex<HashMap<EventKey, WrittenEvent>>,
}

impl Events {
    pub(super) fn new(server: Server, host: String) -> Self {
        Self { server, host, lines: Mutex::default() }
    }

    /// Reports an event about an object. Returns false if the write failed; the event is then lost.
    pub(super) async fn report(&self, about: ObjectReference, event: &Event) -> bool {
        let now = Instant::now();
        let uid = about.uid.clone().unwrap_or_default();
        let namespace = about.namespace.clone().unwrap_or_default();
        let (key, write) = self.with(|lines| plan(lines, &uid, event, now));
        let alike = key.2.is_empty() && !event.message.is_empty();
        let note = if alike {
            format!("(combined from similar events) {}", event.message)
        } else {
            event.message.clone()
        };
        let reported =
            ObjectEvent { reason: event.reason.to_owned(), warning: event.warning, note, at: clock::now() };
        let written = match write {
            Write::Nothing => return true,
            Write::Count(name, count) => self.server.count_event(&namespace, &name, count, &reported).await,
            Write::Create => {
                let made = self.server.object_event(about, &self.host, &reported).await;
                made.map(|name| {
                    let line = WrittenEvent { name, count: 1, began: now, written: now };
                    self.with(|lines| drop(lines.insert(key, line)));
                })
            }
        };
        if let Err(error) = &written {
            tracing::debug!("an event was not written: {error}");
        }
        written.is_ok()
    }

    fn with<R>(&self, work: impl FnOnce(&mut HashMap<EventKey, WrittenEvent>) -> R) -> R {
        work(&mut self.lines.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn plan(
    lines: &mut HashMap<EventKey, WrittenEvent>,
    uid: &str,
    event: &Event,
    now: Instant,
) -> (EventKey, Write) {
    lines.retain(|_, line| now.duration_since(line.began) < WINDOW);
    let mut key = (uid.to_owned(), event.reason, event.message.clone());
    if !lines.contains_key(&key) {
        let alike = lines.keys().filter(|(of, reason, _)| of == uid && *reason == event.reason).count();
        if alike < OWN_LINES {
            return (key, Write::Create);
        }
        key.2 = String::new();
    }
    let Some(line) = lines.get_mut(&key) else { return (key, Write::Create) };
    line.count = line.count.saturating_add(1);
    if now.duration_since(line.written) < PAUSE {
        return (key, Write::Nothing);
    }
    line.written = now;
    let write = Write::Count(line.name.clone(), line.count);
    (key, write)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(lines: &mut HashMap<EventKey, WrittenEvent>, message: &str, now: Instant) -> Write {
        let event = Event { reason: "SuccessfulCreate", message: message.to_owned(), warning: false };
        let (key, write) = plan(lines, "u", &event, now);
        if write == Write::Create {
            lines.insert(key, WrittenEvent { name: message.to_owned(), count: 1, began: now, written: now });
        }
        write
    }

    #[tokio::test(start_paused = true)]
    async fn two_thousand_pods_are_a_few_events() {
        let (mut lines, now) = (HashMap::new(), Instant::now());
        let many = (0..2000).map(|pod| reported(&mut lines, &format!("pod {pod}"), now));
        assert_eq!(many.filter(|write| *write != Write::Nothing).count(), OWN_LINES + 1);
        let later = now + PAUSE;
        assert_eq!(reported(&mut lines, "pod 2000", later), Write::Count("pod 10".to_owned(), 1991));
        assert_eq!(reported(&mut lines, "pod 0", later), Write::Count("pod 0".to_owned(), 2));
        assert_eq!(reported(&mut lines, "pod 0", later + WINDOW), Write::Create, "and then anew");
    }
}
