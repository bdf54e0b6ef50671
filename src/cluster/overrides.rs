//! Settings that replace those of a kubeconfig: server, user, credentials, and the user to act as. Pure.
//!
//! Must not reveal the token: neither an error nor a `Debug` output may contain it.

use std::fmt;
use std::path::{Path, PathBuf};

use kube::config::{
    AuthInfo, Cluster, Context, KubeConfigOptions, Kubeconfig, NamedAuthInfo, NamedCluster, NamedContext,
};

/// The name of the entries that hold the result. They are the first ones, so that no entry of the same name is found.
const OWN: &str = "flags";

/// A bearer token. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// The token `text`.
    ///
    /// # Errors
    /// When it cannot be a header's value. The message does not contain it.
    pub fn new(text: String) -> Result<Self, &'static str> {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            Ok(Self(text))
        } else {
            Err("a token consists of visible ASCII characters without spaces")
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// What replaces the settings of the kubeconfig. `None` keeps them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// The cluster entry of the kubeconfig.
    pub cluster: Option<String>,
    /// The user entry of the kubeconfig.
    pub user: Option<String>,
    /// The URL of the API server. With it no kubeconfig is needed.
    pub server: Option<String>,
    /// The name in the server's certificate.
    pub tls_server_name: Option<String>,
    /// The file with the certificates that the server's is checked against.
    pub certificate_authority: Option<PathBuf>,
    /// Do not check the server's certificate.
    pub insecure: bool,
    /// The bearer token. It replaces all credentials of the user.
    pub token: Option<Token>,
    /// The file with the client's certificate.
    pub client_certificate: Option<PathBuf>,
    /// The file with the key of the client's certificate.
    pub client_key: Option<PathBuf>,
    /// The user to act as.
    pub impersonate: Option<String>,
    /// The uid to act as.
    pub impersonate_uid: Option<String>,
    /// The groups to act as.
    pub impersonate_groups: Vec<String>,
}

impl Overrides {
    /// Adds entries with these settings to the kubeconfig, and selects them. Names that do not exist stay as they
    /// are; the error is reported when the kubeconfig is evaluated.
    pub(super) fn apply(&self, file: &mut Kubeconfig, options: &mut KubeConfigOptions) {
        options.cluster.clone_from(&self.cluster);
        options.user.clone_from(&self.user);
        let context = options.context.clone().or_else(|| file.current_context.clone());
        let context = context.filter(|name| !name.is_empty());
        let named = context.as_ref().and_then(|name| file.contexts.iter().find(|one| one.name == *name));
        let mut context = match named.and_then(|named| named.context.clone()) {
            Some(context) => context,
            None if context.is_some() || self.server.is_none() => return,
            None => Context::default(),
        };
        let wanted = self.cluster.as_ref().unwrap_or(&context.cluster);
        let cluster = file.clusters.iter().find(|one| one.name == *wanted);
        let cluster = match cluster.and_then(|named| named.cluster.clone()) {
            Some(cluster) => cluster,
            None if self.cluster.is_some() || self.server.is_none() => return,
            None => Cluster::default(),
        };
        let wanted = self.user.as_ref().or(context.user.as_ref());
        let user = wanted.and_then(|name| file.auth_infos.iter().find(|one| one.name == *name));
        let user = user.and_then(|named| named.auth_info.clone()).unwrap_or_default();
        OWN.clone_into(&mut context.cluster);
        context.user = Some(OWN.to_owned());
        let name = OWN.to_owned();
        file.clusters.insert(
            0,
            NamedCluster {
                name: name.clone(),
                cluster: Some(self.of_cluster(cluster)),
                ..NamedCluster::default()
            },
        );
        file.auth_infos.insert(
            0,
            NamedAuthInfo {
                name: name.clone(),
                auth_info: Some(self.of_user(user)),
                ..NamedAuthInfo::default()
            },
        );
        file.contexts.insert(
            0,
            NamedContext { name: name.clone(), context: Some(context), ..NamedContext::default() },
        );
        *options = KubeConfigOptions { context: Some(name), cluster: None, user: None };
    }

    /// The user entry that does not exist, if one was named. The evaluation takes it for a user without credentials.
    pub(super) fn missing_user<'a>(&'a self, file: &Kubeconfig) -> Option<&'a str> {
        let user = self.user.as_deref()?;
        file.auth_infos.iter().all(|one| one.name != user).then_some(user)
    }

    fn of_cluster(&self, mut cluster: Cluster) -> Cluster {
        if let Some(server) = &self.server {
            cluster.server = Some(server.clone());
        }
        if let Some(name) = &self.tls_server_name {
            cluster.tls_server_name = Some(name.clone());
        }
        if let Some(path) = &self.certificate_authority {
            (cluster.certificate_authority, cluster.certificate_authority_data) = (Some(text(path)), None);
            cluster.insecure_skip_tls_verify = None;
        }
        if self.insecure {
            cluster.insecure_skip_tls_verify = Some(true);
            (cluster.certificate_authority, cluster.certificate_authority_data) = (None, None);
        }
        cluster
    }

    /// The credentials, with those of the flags.
    pub(super) fn of_user(&self, mut user: AuthInfo) -> AuthInfo {
        if let Some(Token(token)) = &self.token {
            user = AuthInfo {
                token: Some(token.clone().into()),
                impersonate: user.impersonate,
                impersonate_uid: user.impersonate_uid,
                impersonate_groups: user.impersonate_groups,
                impersonate_user_extra: user.impersonate_user_extra,
                ..AuthInfo::default()
            };
        }
        if let Some(path) = &self.client_certificate {
            (user.client_certificate, user.client_certificate_data) = (Some(text(path)), None);
        }
        if let Some(path) = &self.client_key {
            (user.client_key, user.client_key_data) = (Some(text(path)), None);
        }
        if let Some(name) = &self.impersonate {
            user.impersonate = Some(name.clone());
            user.impersonate_uid.clone_from(&self.impersonate_uid);
            let groups = Some(self.impersonate_groups.clone());
            user.impersonate_groups = groups.filter(|groups| !groups.is_empty());
            user.impersonate_user_extra = None;
        }
        user
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> Kubeconfig {
        Kubeconfig::from_yaml(
            "current-context: a\n\
             clusters: [{name: c, cluster: {server: 'https://one', certificate-authority-data: eA==}}, {name: d, cluster: {server: 'https://two'}}]\n\
             users: [{name: u, user: {username: me, password: secret, as: old, as-groups: [g]}}, {name: v, user: {token: other}}]\n\
             contexts: [{name: a, context: {cluster: c, user: u, namespace: shop}}]\n",
        )
        .unwrap()
    }

    fn applied(overrides: &Overrides, mut file: Kubeconfig) -> (Context, Cluster, AuthInfo) {
        let mut options = KubeConfigOptions::default();
        overrides.apply(&mut file, &mut options);
        assert_eq!(options.context.as_deref(), Some(OWN));
        let context = file.contexts.remove(0).context.unwrap();
        let cluster = file.clusters.remove(0).cluster.unwrap();
        (context, cluster, file.auth_infos.remove(0).auth_info.unwrap())
    }

    #[test]
    fn only_what_is_given_is_replaced() {
        let (context, cluster, user) = applied(&Overrides::default(), file());
        assert_eq!(context.namespace.as_deref(), Some("shop"));
        assert_eq!(cluster.server.as_deref(), Some("https://one"));
        assert_eq!((user.username.as_deref(), user.impersonate.as_deref()), (Some("me"), Some("old")));
        let other = Overrides { cluster: Some("d".into()), user: Some("v".into()), ..Overrides::default() };
        let (_, cluster, user) = applied(&other, file());
        assert_eq!((cluster.server.as_deref(), user.username), (Some("https://two"), None));
        let server = Overrides { server: Some("https://x".into()), ..Overrides::default() };
        let (_, cluster, user) = applied(&server, file());
        assert_eq!(cluster.server.as_deref(), Some("https://x"));
        assert!(cluster.certificate_authority_data.is_some() && user.username.is_some());
    }

    #[test]
    fn a_token_replaces_the_other_credentials_and_does_not_show() {
        let token = Token::new("hidden-token".into()).unwrap();
        let overrides = Overrides { token: Some(token), ..Overrides::default() };
        let (_, _, user) = applied(&overrides, file());
        assert!(user.token.is_some() && user.username.is_none() && user.password.is_none());
        assert_eq!(user.impersonate.as_deref(), Some("old"));
        assert!(!format!("{overrides:?} {user:?}").contains("hidden-token"));
        for text in ["", "two words", "line\n", "ä"] {
            assert!(Token::new(text.into()).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_user_to_act_as_replaces_the_groups_of_the_former_one() {
        let overrides = Overrides { impersonate: Some("new".into()), ..Overrides::default() };
        let (_, _, user) = applied(&overrides, file());
        assert_eq!((user.impersonate.as_deref(), user.impersonate_groups), (Some("new"), None));
    }

    #[test]
    fn a_server_needs_no_kubeconfig_and_a_name_that_is_missing_stays_an_error() {
        let server = Overrides { server: Some("https://x".into()), ..Overrides::default() };
        let (_, cluster, _) = applied(&server, Kubeconfig::default());
        assert_eq!(cluster.server.as_deref(), Some("https://x"));
        let other = Overrides { cluster: Some("none".into()), ..server };
        let (mut file, mut options) = (file(), KubeConfigOptions::default());
        other.apply(&mut file, &mut options);
        assert_eq!((options.cluster.as_deref(), options.context), (Some("none"), None));
        let user = Overrides { user: Some("none".into()), ..Overrides::default() };
        assert_eq!(user.missing_user(&file), Some("none"));
    }

    #[test]
    fn an_unchecked_certificate_needs_no_authority() {
        let overrides = Overrides { insecure: true, ..Overrides::default() };
        let (_, cluster, _) = applied(&overrides, file());
        assert_eq!(
            (cluster.insecure_skip_tls_verify, cluster.certificate_authority_data),
            (Some(true), None)
        );
        let path = Some(PathBuf::from("/ca.pem"));
        let (_, cluster, _) =
            applied(&Overrides { certificate_authority: path, ..Overrides::default() }, file());
        assert_eq!(cluster.certificate_authority.as_deref(), Some("/ca.pem"));
        assert_eq!(cluster.certificate_authority_data, None);
    }
}
