//! The role that is there once per cluster: runs the hooks that no agent runs.
