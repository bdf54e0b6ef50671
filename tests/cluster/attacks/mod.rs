//! Attacks, each carried out at a real API server by somebody who has exactly the rights that it needs, and each refused.

mod mirror;
mod webhook;
