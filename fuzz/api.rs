//! The part of `src/api` that the fuzz targets need: the request.

#[path = "../src/api/image.rs"]
pub mod image;
#[path = "../src/api/request.rs"]
pub mod request;
#[path = "../src/api/serde_default.rs"]
mod serde_default;

/// The product's type without its schema.
pub mod hook_template {
    #[derive(Clone, Debug)]
    pub struct Argument {
        pub name: String,
        pub value: Option<String>,
    }
}
