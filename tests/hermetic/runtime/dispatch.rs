//! Passes every call through the faults and the planned actions to its effect, and records it in the log.

use std::future::pending;
use std::sync::PoisonError;

use tokio::time::sleep;
use tonic::{Code, Response, Status};

use super::calls::Outcome;
use super::faults::{Change, Fault, Plan};
use super::server::Shared;

impl Shared {
    /// Handles one call. `about` is the readable form of the object that the call concerns.
    pub(super) async fn call<R, F, E>(
        &self,
        name: &'static str,
        id: &str,
        about: &str,
        effect: F,
    ) -> Result<Response<R>, Status>
    where
        F: Fn() -> E + Send + Sync,
        E: Future<Output = Result<R, Status>> + Send,
        R: Send,
    {
        let cut = self.token();
        // The plan is taken on arrival: rules that are added later do not apply to this call.
        let plan = self.rules.plan(name, about);
        let entry = self.log.begin(name, id, about);
        // Notify tests that wait for the arrival of a call.
        self.change(|_| ());
        let (outcome, answer) = tokio::select! {
            biased;
            () = cut.cancelled() => (Outcome::Lost, Err(Status::unavailable("the connection is closed"))),
            answer = self.carry_out(plan, effect) => match answer {
                Ok(answer) => (Outcome::Ok, Ok(Response::new(answer))),
                Err(status) => (Outcome::Failed(status.code()), Err(status)),
            },
        };
        entry.end(outcome);
        answer
    }

    async fn carry_out<R, F, E>(&self, plan: Plan, effect: F) -> Result<R, Status>
    where
        F: Fn() -> E + Send + Sync,
        E: Future<Output = Result<R, Status>> + Send,
        R: Send,
    {
        let whole = || self.whole(&plan, &effect);
        let Some(fault) = plan.fault else {
            return whole().await;
        };
        match fault {
            Fault::Slow(time) => {
                sleep(time).await;
                whole().await
            }
            Fault::SlowReply(time) => {
                let result = whole().await;
                sleep(time).await;
                result
            }
            Fault::Fail(code, message) => Err(Status::new(code, message)),
            Fault::FailAfterEffect => {
                drop(whole().await);
                Err(Status::new(Code::Unavailable, "transport is closing"))
            }
            Fault::Twice => {
                drop(effect().await);
                whole().await
            }
            Fault::Hang => pending().await,
            Fault::HangAfterEffect => {
                drop(whole().await);
                pending().await
            }
            Fault::DropConnection => self.lose(Self::cut).await,
            Fault::DropConnectionAfterEffect => {
                drop(whole().await);
                self.lose(Self::cut).await
            }
            Fault::Restart(away) => self.lose(|shared| shared.go_away(Some(away))).await,
            Fault::RestartAfterEffect(away) => {
                drop(whole().await);
                self.lose(|shared| shared.go_away(Some(away))).await
            }
        }
    }

    /// Runs the effect, with the planned actions before and after it.
    async fn whole<R, F, E>(&self, plan: &Plan, effect: &F) -> Result<R, Status>
    where
        F: Fn() -> E + Send + Sync,
        E: Future<Output = Result<R, Status>> + Send,
        R: Send,
    {
        self.act(&plan.before);
        let result = effect().await;
        self.act(&plan.after);
        result
    }

    async fn lose<R>(&self, how: impl FnOnce(&Self)) -> R {
        how(self);
        pending().await
    }

    fn act(&self, changes: &[Change]) {
        for change in changes {
            let mut change = change.lock().unwrap_or_else(PoisonError::into_inner);
            self.change(|model| change(model));
        }
    }
}
