//! Where a kubelet takes the user of a container from, by the security contexts of the container and of its pod.

use serde::Deserialize;

use crate::operation::snapshot::UserSource;

/// The fields of a security context that decide about the user. A pod and its containers have them in common.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct SecurityContext {
    run_as_user: Option<i64>,
    run_as_non_root: Option<bool>,
}

impl SecurityContext {
    /// Where the user of a container with this context comes from. What the context does not set is as its `pod` sets
    /// it (`DetermineEffectiveSecurityContext` in pkg/securitycontext).
    pub(super) fn user(&self, pod: &Self) -> UserSource {
        let is_set = self.run_as_user.or(pod.run_as_user).is_some();
        match self.run_as_non_root.or(pod.run_as_non_root) {
            _ if is_set => UserSource::Spec,
            Some(true) => UserSource::ImageNotRoot,
            Some(false) | None => UserSource::Image,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_of_a_container_comes_from_its_spec_or_from_its_image() {
        for (pod, own, user) in [
            ("{}", "{}", UserSource::Image),
            (r#"{"runAsUser":7}"#, "{}", UserSource::Spec),
            ("{}", r#"{"runAsUser":0}"#, UserSource::Spec),
            (r#"{"runAsUser":7,"runAsNonRoot":true}"#, r#"{"runAsUser":null}"#, UserSource::Spec),
            (r#"{"runAsNonRoot":true}"#, r#"{"runAsGroup":7}"#, UserSource::ImageNotRoot),
            (r#"{"runAsNonRoot":true}"#, r#"{"runAsNonRoot":false}"#, UserSource::Image),
            (r#"{"runAsNonRoot":false}"#, r#"{"runAsNonRoot":true}"#, UserSource::ImageNotRoot),
        ] {
            let read = |text: &str| serde_json::from_str::<SecurityContext>(text).unwrap();
            assert_eq!(read(own).user(&read(pod)), user, "{own} in {pod}");
        }
    }
}
