//! Breaks an invariant on the real cluster on purpose: the checker has to notice. Never part of a plan.

use inplace::{
    api::annotation::OPERATION,
    cri::{
        client::Client,
        clone::{Source, sandbox_config},
        endpoint::Endpoint,
    },
};

use super::run::{Run, name_of};
use crate::cluster::block_on;

/// Creates and starts a second container `app` in the first pod, as a kubelet does that does not see the first one.
pub(super) fn duplicate(run: &Run<'_>) {
    let settled = run.settled(0).unwrap_or_else(|why| panic!("{} does not settle: {why}", name_of(0)));
    let running = {
        let history = run.watch.history.lock().unwrap();
        let mut running = history.present(&settled.uid, "app").filter(|one| one.is_running);
        running.next().cloned().unwrap()
    };
    block_on(async {
        let client = Client::new(&Endpoint::parse(&run.nodes[running.node].endpoint).unwrap(), None);
        let answer = client.container(&running.id, true).await.unwrap().unwrap();
        let source = Source::read(&answer.status.unwrap(), &answer.info).unwrap();
        let mut config = source.replacement(running.attempt + 1, None, "");
        config.labels.remove(OPERATION);
        let sandbox = client.sandbox(&running.sandbox, true).await.unwrap().unwrap();
        let config = (config, sandbox_config(&sandbox.info).unwrap());
        let id = client.create(&running.sandbox, config.0, config.1).await.unwrap();
        client.start(&id).await.unwrap();
    });
}
