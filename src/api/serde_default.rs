//! Skips fields with their default value when an object is written.

/// True for the default value.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
