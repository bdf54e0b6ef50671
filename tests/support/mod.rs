//! What several kinds of tests use: waiting, stops at fault points, a browser, an HTTP server and requests, a private node and the state of what runs on it, figures
//! and panics of a process, releases, free ports, clients of an example. Must not know what is tested.

#![allow(dead_code, reason = "each kind of tests uses a part of it")]

pub(crate) mod browser;
pub(crate) mod facts;
pub(crate) mod hold;
pub(crate) mod hook_server;
pub(crate) mod http_client;
pub(crate) mod http_server;
pub(crate) mod lab;
pub(crate) mod panics;
pub(crate) mod parts;
pub(crate) mod ports;
pub(crate) mod process;
pub(crate) mod prometheus;
pub(crate) mod release;
pub(crate) mod release_files;
pub(crate) mod screen;
pub(crate) mod session_clients;
pub(crate) mod wait;
