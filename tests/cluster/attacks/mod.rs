//! Attacks, each carried out at a real API server by somebody who has exactly the rights that it needs, and each refused.

mod hooks;
mod mirror;
mod pods;
mod pre_stop;
mod tenant;
mod webhook;
