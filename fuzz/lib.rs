//! Includes the product's source files that are fuzzed, and nothing else of the product, whose build takes
//! minutes.
#![allow(dead_code, missing_docs, reason = "the product checks its own files")]

pub mod api;
pub mod hook;
