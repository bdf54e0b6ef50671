//! The pods of one node as the API server shows them, kept up to date by one watch, and what is written to them.
//!
//! Must not decide: it tells what is there, and does what it is told once.

mod watch;
mod write;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use tokio_util::sync::CancellationToken;

use crate::cluster::pod::Pod;
use crate::cluster::server::Server;
use crate::operation::snapshot::Declared;

/// The pods of a node. Clones share them, but each counts its own [`Self::changed`].
#[derive(Clone)]
pub struct NodePods {
    shared: Arc<Shared>,
    news: tokio::sync::watch::Receiver<()>,
}

/// What the watch fills.
struct Shared {
    server: Server,
    node: String,
    view: RwLock<View>,
    news: tokio::sync::watch::Sender<()>,
}

#[derive(Default)]
struct View {
    /// By the uid that the runtime knows.
    pods: BTreeMap<String, Arc<Pod>>,
    current: bool,
    synced: bool,
}

impl std::fmt::Debug for NodePods {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (count, current) = self.shared.read(|view| (view.pods.len(), view.current));
        let mut shown = f.debug_struct("NodePods");
        shown.field("node", &self.shared.node).field("pods", &count).field("current", &current);
        shown.finish_non_exhaustive()
    }
}

impl NodePods {
    /// Watches the pods of `node` until `stop`. Nothing is known yet when this returns: [`Self::has_synced`].
    pub fn watch(client: kube::Client, node: &str, stop: CancellationToken) -> Self {
        let (sender, news) = tokio::sync::watch::channel(());
        let shared = Arc::new(Shared {
            server: Server::new(client),
            node: node.to_owned(),
            view: RwLock::default(),
            news: sender,
        });
        tokio::spawn(watch::run(Arc::clone(&shared), stop));
        Self { shared, news }
    }

    /// The node.
    pub fn node(&self) -> &str {
        &self.shared.node
    }

    /// All of them, by uid.
    pub fn list(&self) -> Vec<Arc<Pod>> {
        self.shared.read(|view| view.pods.values().cloned().collect())
    }

    /// The pod with this uid, the one that the runtime knows.
    pub fn get(&self, runtime_uid: &str) -> Option<Arc<Pod>> {
        self.shared.read(|view| view.pods.get(runtime_uid).cloned())
    }

    /// The same in the words of the decisions; `None` when the API server does not know the pod.
    pub fn declared(&self, runtime_uid: &str) -> Option<Declared> {
        self.shared.read(|view| view.pods.get(runtime_uid).map(|pod| pod.declared(view.current)))
    }

    /// True while the watch runs: what is told here is then as new as the API server can tell.
    pub fn is_current(&self) -> bool {
        self.shared.read(|view| view.current)
    }

    /// True once the pods were listed: what is not here was not there then.
    pub fn has_synced(&self) -> bool {
        self.shared.read(|view| view.synced)
    }

    /// Returns when anything has changed since this clone last asked: a pod, or whether this is current. Many changes
    /// are told as one.
    pub async fn changed(&mut self) {
        // The sender lives as long as this does, so that this never fails.
        if self.news.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Shared {
    fn read<R>(&self, look: impl FnOnce(&View) -> R) -> R {
        look(&self.view.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change(&self, work: impl FnOnce(&mut View)) {
        work(&mut self.view.write().unwrap_or_else(PoisonError::into_inner));
        self.news.send_replace(());
    }

    /// Everything that there is.
    fn replace(&self, pods: Vec<Pod>) {
        let pods = pods.into_iter().map(|pod| (pod.reference().uid, Arc::new(pod))).collect();
        self.change(|view| {
            view.pods = pods;
            view.synced = true;
        });
    }

    /// A pod as the watch shows it. The answer to a patch of ours may have come first, and be newer.
    fn put(&self, pod: Pod) {
        self.change(|view| {
            let uid = pod.reference().uid;
            if view.pods.get(&uid).is_none_or(|known| pod.is_not_older_than(known)) {
                view.pods.insert(uid, Arc::new(pod));
            }
        });
    }

    fn remove(&self, pod: &Pod) {
        self.change(|view| {
            // A static pod's copy is made anew under another uid, but the same one on the node: what is deleted late
            // must not take the new one along.
            let uid = pod.reference().uid;
            if view.pods.get(&uid).is_some_and(|known| known.api_uid() == pod.api_uid()) {
                view.pods.remove(&uid);
            }
        });
    }

    /// A pod as a patch of ours was answered: known at once, and not when the watch gets to it. One that is not there
    /// (any more) stays away.
    fn learn(&self, pod: Pod) {
        let uid = pod.reference().uid;
        if self.read(|view| view.pods.contains_key(&uid)) {
            self.put(pod);
        }
    }

    fn set_current(&self, current: bool) {
        if self.read(|view| view.current != current) {
            self.change(|view| view.current = current);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared() -> Shared {
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let (news, _) = tokio::sync::watch::channel(());
        let server = Server::new(kube::Client::try_from(config).unwrap());
        Shared { server, node: "node-1".into(), view: RwLock::default(), news }
    }

    fn pod(uid: &str, version: u32, mirror: &str) -> Pod {
        let text = format!(
            r#"{{"metadata":{{"name":"web","namespace":"shop","uid":"{uid}","resourceVersion":"{version}",
                "annotations":{{"kubernetes.io/config.mirror":"{mirror}"}}}}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn versions(shared: &Shared) -> Vec<(String, String)> {
        let version = |pod: &Arc<Pod>| kube::ResourceExt::resource_version(pod.as_ref()).unwrap();
        shared.read(|view| view.pods.values().map(|pod| (pod.api_uid().to_owned(), version(pod))).collect())
    }

    #[tokio::test]
    async fn neither_watch_nor_answer_brings_back_an_older_state() {
        let shared = shared();
        shared.put(pod("a", 10, ""));
        shared.learn(pod("a", 12, ""));
        shared.put(pod("a", 11, ""));
        assert_eq!(versions(&shared), [("a".into(), "12".into())]);
        shared.put(pod("a", 13, ""));
        shared.learn(pod("a", 12, ""));
        assert_eq!(versions(&shared), [("a".into(), "13".into())]);
        // A list is believed, whatever was known.
        shared.replace(vec![pod("a", 5, "")]);
        assert_eq!(versions(&shared), [("a".into(), "5".into())]);
    }

    #[tokio::test]
    async fn a_pod_that_is_gone_is_not_learnt_again() {
        let shared = shared();
        shared.put(pod("a", 10, ""));
        shared.remove(&pod("a", 11, ""));
        shared.learn(pod("a", 12, ""));
        assert_eq!(versions(&shared), []);
    }

    #[tokio::test]
    async fn a_late_goodbye_of_a_copy_does_not_take_the_next_one_along() {
        let shared = shared();
        shared.put(pod("a", 10, "static"));
        shared.put(pod("b", 11, "static"));
        shared.remove(&pod("a", 12, "static"));
        assert_eq!(versions(&shared), [("b".into(), "11".into())]);
    }
}
