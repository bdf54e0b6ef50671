//! What is not written into an object, because it says nothing.

/// Whether it is what is meant anyway.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
