//! The product's own files for what is fuzzed, and nothing else of it: the rest would be minutes of compiling.
#![allow(dead_code, missing_docs, reason = "the product checks its own files")]

pub mod api;
pub mod hook;
