//! A watch on the objects of one kind in one namespace, with their history from the start.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::Arc,
    time::Duration,
};

use kube::{
    Api, Client, Resource,
    core::NamespaceResourceScope,
    runtime::watcher::{self, watcher},
};
use serde::de::DeserializeOwned;
use tokio::{
    sync::watch::{self, Receiver, Sender},
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_stream::StreamExt;

use crate::cluster::{block_on, runtime};

/// All objects of a kind, by name.
pub(super) type All<K> = BTreeMap<String, Arc<K>>;

/// The watch. It ends when dropped.
pub(super) struct Watched<K> {
    seen: Receiver<Vec<All<K>>>,
    watching: JoinHandle<()>,
}

impl<K> Watched<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    pub(super) fn of(client: Client, namespace: &str) -> Self {
        let (sender, seen) = watch::channel(vec![All::new()]);
        let watching = runtime().spawn(follow(Api::namespaced(client, namespace), sender));
        Self { seen, watching }
    }

    /// Waits until the objects fulfil a condition; `None` when the time is over.
    pub(super) fn wait(&self, limit: Duration, wanted: impl Fn(&All<K>) -> bool) -> Option<All<K>> {
        let mut seen = self.seen.clone();
        block_on(async {
            let found = timeout(limit, seen.wait_for(|seen| seen.last().is_some_and(&wanted))).await;
            found.ok().and_then(|seen| seen.unwrap().last().cloned())
        })
    }

    /// Waits until `text` of the objects is `wanted`. `limit` is for each text that was not there before; `None` when it is over.
    pub(super) fn wait_through(
        &self,
        limit: Duration,
        text: impl Fn(&All<K>) -> String,
        wanted: &str,
    ) -> Option<All<K>> {
        let mut earlier = BTreeSet::new();
        loop {
            let all = self.wait(limit, |all| text(all) == wanted || !earlier.contains(&text(all)))?;
            let now = text(&all);
            if now == wanted {
                return Some(all);
            }
            earlier.insert(now);
        }
    }

    /// The current objects.
    pub(super) fn now(&self) -> All<K> {
        self.seen.borrow().last().unwrap().clone()
    }

    /// The objects after each change, oldest first.
    pub(super) fn history(&self) -> Vec<All<K>> {
        self.seen.borrow().clone()
    }
}

impl<K> Drop for Watched<K> {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

async fn follow<K>(api: Api<K>, sender: Sender<Vec<All<K>>>)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let events = watcher(api, watcher::Config::default());
    tokio::pin!(events);
    let name = |object: &K| object.meta().name.clone().unwrap();
    while let Some(event) = events.next().await {
        let (name, object) = match event {
            Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                (name(&object), Some(Arc::new(object)))
            }
            Ok(watcher::Event::Delete(object)) => (name(&object), None),
            Ok(_) => continue,
            Err(_) => {
                sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        sender.send_modify(|seen| {
            let mut all = seen.last().unwrap().clone();
            match object {
                Some(object) => drop(all.insert(name, object)),
                None => drop(all.remove(&name)),
            }
            seen.push(all);
        });
    }
}
