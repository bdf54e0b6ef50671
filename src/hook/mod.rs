//! The gates: what a hook measures, when, and what follows from it.
//!
//! Pure: what stands in its own file here, and knows neither clock nor network. I/O: [`provider`](self) and the engine that
//! drives a run. Must not know operations or workloads: they ask for a run and read its phase.
