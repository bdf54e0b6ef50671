//! Leader election on a Lease: at most one process leads at a time.
//!
//! Clocks of other machines are never compared. Two times count: when this process last saw the lease change, and
//! when its own last renewal began. A leader that cannot renew stops before another process may acquire the lease,
//! provided that the clocks run at the same rate.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::core::Request;
use kube::core::params::{GetParams, PostParams};
use kube::{Resource, ResourceExt as _};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::cluster::error::Error;
use crate::cluster::jitter;
use crate::cluster::server::{MANAGER, Server};
use crate::failure::Class;
use crate::process::clock;
use crate::process::log::chain;

/// How long an unchanged lease belongs to its holder.
const DURATION: Duration = Duration::from_secs(15);
/// A leader whose last renewal began this long ago stops leading: 5 s before another process may start.
const DEADLINE: Duration = Duration::from_secs(10);
/// How long one call for the lease may take. A call that gets no answer is repeated in time for another renewal.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// The pause between renewals, and between reads of another holder's lease. Up to half of it is added at random.
const PAUSE: Duration = Duration::from_secs(2);
/// How long a leader may continue after it was stopped; then its future is dropped.
const SHUTDOWN_WORK: Duration = Duration::from_secs(4);

/// A lease as this process last saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedLease {
    /// The holder's identity; empty if there is no holder.
    pub holder: String,
    /// How long the lease belongs to the holder after a change.
    pub duration: Duration,
    /// When this process last saw the lease change, counted from a fixed moment.
    pub changed: Duration,
}

/// What to do about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseAction {
    /// The lease is free: try to acquire it.
    Acquire,
    /// This process holds the lease: renew it.
    Renew,
    /// Do nothing before this time has passed.
    Wait(Duration),
    /// This process held the lease and has lost it.
    Lost,
}

/// Decides what to do about `lease`. `held` is the time at which the last successful renewal of this process began, if it
/// leads. `now` and all other times count from the same moment.
pub fn next_action(
    lease: Option<&ObservedLease>,
    me: &str,
    held: Option<Duration>,
    now: Duration,
) -> LeaseAction {
    if let Some(renewed) = held {
        let age = now.saturating_sub(renewed);
        if age >= DEADLINE || lease.is_none_or(|lease| lease.holder != me) {
            return LeaseAction::Lost;
        }
        return if age >= PAUSE { LeaseAction::Renew } else { LeaseAction::Wait(PAUSE.saturating_sub(age)) };
    }
    let Some(lease) = lease.filter(|lease| !lease.holder.is_empty()) else { return LeaseAction::Acquire };
    // A holder that writes a shorter duration is given the full `DURATION` all the same.
    let left = (lease.changed + lease.duration.max(DURATION)).saturating_sub(now);
    if left.is_zero() { LeaseAction::Acquire } else { LeaseAction::Wait(left.min(PAUSE)) }
}

/// A participant of an election.
#[derive(Debug)]
pub struct Election {
    server: Server,
    namespace: String,
    name: String,
    me: String,
    began: Instant,
    /// The lease as it was last read or written.
    lease: Option<Lease>,
    seen: Option<ObservedLease>,
    held: Option<Duration>,
}

impl Election {
    /// A participant for the lease `namespace/name` with the identity `me`. No other process may use this identity,
    /// including earlier ones.
    pub fn new(server: Server, namespace: &str, name: &str, me: &str) -> Self {
        Self {
            server,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            me: me.to_owned(),
            began: Instant::now(),
            lease: None,
            seen: None,
            held: None,
        }
    }

    /// Runs until `stop`, and runs `lead` whenever this process leads. `lead` gets a token that is cancelled when
    /// the process stops leading; it must then end at once. At the end the lease is released.
    pub async fn run<L>(mut self, stop: CancellationToken, mut lead: impl FnMut(CancellationToken) -> L)
    where
        L: Future<Output = ()>,
    {
        let mut reported = false;
        while !stop.is_cancelled() {
            let waited = match next_action(self.seen.as_ref(), &self.me, None, self.now()) {
                LeaseAction::Acquire => self.acquire().await,
                _ => self.observe().await,
            };
            match waited {
                Ok(()) => reported = false,
                Err(error) if !std::mem::replace(&mut reported, true) => {
                    tracing::warn!("the lease cannot be read or acquired: {}", chain(&error));
                }
                Err(_) => {}
            }
            if self.held.is_some() {
                self.lead(&stop, &mut lead).await;
            } else {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = sleep(jitter::up_to_half_more(PAUSE)) => {}
                }
            }
        }
    }

    /// Runs `lead` until the lease is lost or released.
    async fn lead<L>(&mut self, stop: &CancellationToken, lead: &mut impl FnMut(CancellationToken) -> L)
    where
        L: Future<Output = ()>,
    {
        tracing::info!(lease = self.name, identity = self.me, "leading");
        let over = CancellationToken::new();
        let leading = lead(over.clone());
        tokio::pin!(leading);
        let mut is_over = false;
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.renew_until_lost() => tracing::warn!(lease = self.name, identity = self.me, "lost the lease: this process is not the leader any more"),
            // There is nothing (more) to do: another process may lead.
            () = &mut leading => is_over = true,
        }
        over.cancel();
        let shutdown_work = async {
            if !is_over {
                leading.await;
            }
        };
        // The lease is renewed until the shutdown work has ended, unless the lease is lost.
        let shutdown_work = timeout(SHUTDOWN_WORK, shutdown_work);
        tokio::pin!(shutdown_work);
        tokio::select! {
            ended = &mut shutdown_work => drop(ended),
            () = self.renew_until_lost() => drop(shutdown_work.await),
        }
        self.give_back().await;
        self.held = None;
    }

    async fn renew_until_lost(&mut self) {
        let mut pause = Duration::ZERO;
        loop {
            match next_action(self.seen.as_ref(), &self.me, self.held, self.now()) {
                LeaseAction::Renew if pause.is_zero() => {
                    let left = (self.held.unwrap_or_default() + DEADLINE).saturating_sub(self.now());
                    let left = left.min(CALL_TIMEOUT);
                    match timeout(left, self.write(&self.me.clone())).await {
                        Ok(Ok(())) => {}
                        Err(_) => {
                            tracing::debug!(
                                "the renewal of the lease got no answer in {} ms",
                                left.as_millis()
                            );
                        }
                        Ok(Err(error)) => {
                            tracing::debug!("the lease is not renewed: {}", chain(&error));
                            if error.class() == Class::Refused || error.class() == Class::Gone {
                                // Another process changed the lease, so read its holder. If the read fails, the
                                // state is the same as without an answer.
                                let _ = timeout(left, self.observe()).await;
                            }
                            pause = PAUSE / 4;
                        }
                    }
                }
                LeaseAction::Renew => sleep(std::mem::take(&mut pause)).await,
                LeaseAction::Wait(left) => sleep(left).await,
                LeaseAction::Lost | LeaseAction::Acquire => return,
            }
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    async fn observe(&mut self) -> Result<(), Error> {
        let doing = format!("reading lease {}/{}", self.namespace, self.name);
        let request = self.leases().get(&self.name, &GetParams::default());
        match self.server.ask::<Lease>(&doing, request).await {
            Ok(lease) => self.record(lease),
            Err(error) if error.class() == Class::Gone => {
                self.lease = None;
                self.seen = None;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Tries to acquire the lease. Losing against another process is not an error.
    async fn acquire(&mut self) -> Result<(), Error> {
        if self.lease.is_none() {
            // A lease that this process has not read yet must not be treated as expired.
            self.observe().await?;
            if !matches!(next_action(self.seen.as_ref(), &self.me, None, self.now()), LeaseAction::Acquire) {
                return Ok(());
            }
        }
        match self.write(&self.me.clone()).await {
            Err(error) if matches!(error.class(), Class::Refused | Class::Gone) => self.observe().await,
            written => written,
        }
    }

    /// Releases the lease, so that another process can acquire it at once.
    async fn give_back(&mut self) {
        if next_action(self.seen.as_ref(), &self.me, self.held, self.now()) == LeaseAction::Lost {
            return;
        }
        let giving = async {
            match self.write("").await {
                // A renewal that was not waited for has been written in between.
                Err(error) if error.class() == Class::Refused => {
                    self.observe().await?;
                    if self.seen.as_ref().is_some_and(|seen| seen.holder == self.me) {
                        return self.write("").await;
                    }
                    Ok(())
                }
                given => given,
            }
        };
        match timeout(SHUTDOWN_WORK, giving).await {
            Ok(Ok(())) => tracing::info!(lease = self.name, identity = self.me, "given back"),
            Ok(Err(error)) => tracing::warn!("the lease cannot be released: {}", chain(&error)),
            Err(_) => tracing::warn!("the lease cannot be released: the API server does not answer"),
        }
    }

    /// Writes `holder` into the version of the lease that was last seen, or creates the lease if there was none.
    async fn write(&mut self, holder: &str) -> Result<(), Error> {
        let began = self.now();
        let doing = format!("writing lease {}/{}", self.namespace, self.name);
        let old = self.lease.clone();
        let spec = old.as_ref().and_then(|lease| lease.spec.clone()).unwrap_or_default();
        let changes = spec.holder_identity.as_deref().unwrap_or_default() != holder;
        let at = MicroTime(clock::now());
        let lease = Lease {
            // The metadata contains the version that was seen, so that the write is refused after a concurrent
            // change.
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                namespace: Some(self.namespace.clone()),
                ..old.as_ref().map(|lease| lease.metadata.clone()).unwrap_or_default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(holder.to_owned()),
                lease_duration_seconds: Some(i32::try_from(DURATION.as_secs()).unwrap_or(i32::MAX)),
                acquire_time: if changes { Some(at.clone()) } else { spec.acquire_time },
                renew_time: Some(at),
                lease_transitions: Some(spec.lease_transitions.unwrap_or(0).saturating_add(changes.into())),
                ..LeaseSpec::default()
            }),
        };
        let body = serde_json::to_vec(&lease)
            .map_err(|error| Error::own(&doing, Class::Final, format!("no lease: {error}")))?;
        let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..Default::default() };
        let request = match old {
            Some(_) => self.leases().replace(&self.name, &params, body),
            None => self.leases().create(&params, body),
        };
        let written: Lease = self.server.ask(&doing, request).await?;
        self.record(written);
        self.held = (holder == self.me).then_some(began);
        Ok(())
    }

    /// Stores the lease, and the current time if the lease has changed.
    fn record(&mut self, lease: Lease) {
        let spec = lease.spec.clone().unwrap_or_default();
        let is_same =
            self.lease.as_ref().is_some_and(|last| last.resource_version() == lease.resource_version());
        let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let changed = match (&self.seen, is_same) {
            (Some(seen), true) => seen.changed,
            _ => self.now(),
        };
        self.seen = Some(ObservedLease {
            holder: spec.holder_identity.unwrap_or_default(),
            duration: seconds.map_or(DURATION, Duration::from_secs),
            changed,
        });
        self.lease = Some(lease);
    }

    fn leases(&self) -> Request {
        Request::new(Lease::url_path(&(), Some(&self.namespace)))
    }
}

#[cfg(test)]
mod tests;
