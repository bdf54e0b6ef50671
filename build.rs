//! Compiles the CRI interface.
fn main() {}
