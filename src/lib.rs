//! map to come
