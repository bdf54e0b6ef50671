//! The user of a clone from another image than its source has.
//!
//! Where the spec names no user, a kubelet writes that of the image into the configuration of a container, so that a
//! clone from another image would run as the user of the image before.

use crate::cri::proto::v1;

/// The user that an image names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageUser {
    /// By its number.
    Id(i64),
    /// By its name in the image.
    Name(String),
}

impl ImageUser {
    /// The user of `image` as a kubelet reads it (`getImageUser` in pkg/kubelet/kuberuntime): root if the image names
    /// none.
    pub fn of(image: v1::Image) -> Self {
        match image.uid {
            Some(uid) => Self::Id(uid.value),
            None if image.username.is_empty() => Self::Id(0),
            None => Self::Name(image.username),
        }
    }

    /// True for a user that a kubelet refuses with `runAsNonRoot`: root, or a name, which may be that of root.
    pub fn may_be_root(&self) -> bool {
        matches!(self, Self::Id(0) | Self::Name(_))
    }

    /// Gives `config` this user, as a kubelet does.
    pub fn give(self, config: &mut v1::ContainerConfig) {
        let security = config.linux.get_or_insert_default().security_context.get_or_insert_default();
        (security.run_as_user, security.run_as_username) = match self {
            Self::Id(value) => (Some(v1::Int64Value { value }), String::new()),
            Self::Name(name) => (None, name),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_gets_the_user_that_a_kubelet_would_give_it() {
        let id = |value| Some(v1::Int64Value { value });
        for (uid, name, may_be_root, user) in [
            (id(65532), "", false, (id(65532), "")),
            (id(0), "", true, (id(0), "")),
            (None, "nonroot", true, (None, "nonroot")),
            (None, "", true, (id(0), "")),
        ] {
            let user_of = ImageUser::of(v1::Image { uid, username: name.to_owned(), ..Default::default() });
            assert_eq!(user_of.may_be_root(), may_be_root, "{user_of:?}");
            let mut config = v1::ContainerConfig::default();
            for before in [ImageUser::Id(7), ImageUser::Name("before".to_owned()), user_of] {
                before.give(&mut config);
            }
            let security = config.linux.unwrap().security_context.unwrap();
            assert_eq!((security.run_as_user, security.run_as_username.as_str()), user);
        }
    }
}
