//! Attacks on a real API server. Each is carried out by an identity with exactly the rights that it needs, and
//! each must be refused.

mod hooks;
mod mirror;
mod pods;
mod pre_stop;
mod tenant;
mod webhook;
