//! The part of `src/hook` that the fuzz targets need: the parsers.

#[path = "../src/hook/condition/mod.rs"]
pub mod condition;
#[path = "../src/hook/json.rs"]
pub mod json;
#[path = "../src/hook/json_path.rs"]
pub mod json_path;
#[path = "../src/hook/template.rs"]
pub mod template;
#[path = "../src/hook/value.rs"]
pub mod value;
