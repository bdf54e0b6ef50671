//! The API calls: each is made once and has a deadline; all failures are classified in `cluster::error`.
//!
//! Uses only verbs and API versions that every release since 1.20 has. Must not print an object or an answer.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::future::ready;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::{AsyncBufReadExt as _, Stream, StreamExt as _};
use json_patch::PatchOperation;
use k8s_openapi::api::core::v1::{Event, Secret};
use kube::Resource;
use kube::core::params::{GetParams, ListParams, Patch, PatchParams, PostParams, VersionMatch, WatchParams};
use kube::core::{Request, WatchEvent, request};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cluster::discovery::Discovered;
use crate::cluster::error::Error;
use crate::cluster::items::Splitter;
use crate::cluster::lenient;
use crate::cluster::patch::{as_us, json_patch};
use crate::cluster::pod::Pod;
use crate::failure::Class;

/// The deadline of every call except a watch, and of every page of a list. The API server's own limit is a minute; a
/// server that takes longer than this is not healthy.
const CALL: Duration = Duration::from_secs(10);
/// The page size of lists unless the selection has its own: a list of all pods of a large cluster has more objects
/// than can be sent within [`CALL`].
const PAGE: u32 = 500;
/// The field manager of all writes.
pub(crate) const MANAGER: &str = "inplace";
/// The API server ends a watch after this many seconds; that is not a failure.
const WATCH_SECONDS: u32 = 290;

/// An API server. Clones share the connections.
#[derive(Clone)]
pub struct Server {
    client: kube::Client,
    /// The API groups that the server last served only in their older version.
    older: Arc<Mutex<BTreeSet<Cow<'static, str>>>>,
    /// What the server can do, as far as it was asked.
    pub(super) discovered: Arc<Mutex<Option<Discovered>>>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Server")
    }
}

/// A change to a pod.
#[derive(Clone, Debug)]
pub enum Change {
    /// The operations of a JSON patch (RFC 6902). If a `test` fails, nothing is changed.
    Json(Vec<PatchOperation>),
    /// A strategic merge patch of the status: lists are merged by their keys.
    Status(Value),
}

impl Change {
    /// The request that makes the change of the pod of this name.
    fn request(
        &self,
        namespace: &str,
        name: &str,
        params: &PatchParams,
    ) -> Result<http::Request<Vec<u8>>, request::Error> {
        let pods = pods(namespace);
        match self {
            Self::Json(operations) => pods.patch(name, params, &json_patch(operations.clone())),
            Self::Status(body) => pods.patch_subresource("status", name, params, &Patch::Strategic(body)),
        }
    }
}

/// The objects of a kind to list and watch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    /// What the objects are called in messages: `the pods of node a`.
    pub(crate) what: String,
    /// `None`: all namespaces.
    pub(crate) namespace: Option<String>,
    pub(crate) fields: Option<String>,
    pub(crate) labels: Option<String>,
    /// The API version to use instead of the version of the type.
    pub(crate) version: Option<&'static str>,
    /// True if lists may come from the API server's watch cache (as kubelets do). Otherwise every agent would make
    /// the server read all pods of the cluster from its database. If the first list is old, the watch delivers the
    /// rest.
    pub(crate) from_memory: bool,
    /// The page size of lists, for kinds whose objects may be as large as the server allows; 0: [`PAGE`]. It limits
    /// the size of an answer, which the API server holds in memory as a whole.
    pub(crate) page: u32,
}

/// How old a list may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Age {
    /// Any age: from the API server's watch cache.
    Any,
    /// From the watch cache, once it is as new as this version, so that an API server that lags behind does not
    /// return an older state than the one already seen.
    NotOlderThan(String),
    /// The newest state.
    Newest,
}

/// The objects at one moment.
pub(crate) struct Listed<T> {
    pub(crate) items: Vec<T>,
    /// The version from which a watch continues.
    pub(crate) version: String,
}

/// A list without its items.
#[derive(Deserialize)]
struct List {
    metadata: ListMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    #[serde(default)]
    resource_version: String,
    #[serde(default, rename = "continue")]
    rest: String,
}

impl Server {
    /// The server that `client` connects to.
    pub fn new(client: kube::Client) -> Self {
        Self { client, older: Arc::default(), discovered: Arc::default() }
    }

    /// Whether the server last served only the older version of `group`.
    pub(crate) fn is_older(&self, group: &str) -> bool {
        self.older.lock().unwrap_or_else(PoisonError::into_inner).contains(group)
    }

    /// Records which version of `group` the server served.
    pub(crate) fn set_older(&self, group: Cow<'static, str>, older: bool) {
        let mut groups = self.older.lock().unwrap_or_else(PoisonError::into_inner);
        if older {
            groups.insert(group)
        } else {
            groups.remove(&group)
        };
    }

    /// Reads the pod of this name.
    pub async fn pod(&self, namespace: &str, name: &str) -> Result<Pod, Error> {
        let doing = format!("reading pod {namespace}/{name}");
        let request = pods(namespace).get(name, &GetParams::default());
        self.ask(&doing, request).await
    }

    /// Changes a pod, and returns it as stored: only its metadata, if the rest cannot be parsed. A change that was stored
    /// has not failed.
    pub async fn change(
        &self,
        doing: &str,
        namespace: &str,
        name: &str,
        change: &Change,
    ) -> Result<Pod, Error> {
        let text = self.text(doing, change.request(namespace, name, &as_us())).await?;
        lenient::item(text.as_bytes()).map_err(|error| unreadable(doing, &error))
    }

    /// Asks for a change of a pod as a dry run: admission decides about it, and nothing is stored.
    pub(crate) async fn would_change(
        &self,
        doing: &str,
        namespace: &str,
        name: &str,
        change: &Change,
    ) -> Result<(), Error> {
        let request = change.request(namespace, name, &PatchParams { dry_run: true, ..as_us() });
        self.ask::<serde::de::IgnoredAny>(doing, request).await.map(drop)
    }

    pub(crate) async fn report(&self, doing: &str, namespace: &str, event: &Event) -> Result<(), Error> {
        let body = serde_json::to_vec(event)
            .map_err(|error| Error::own(doing, Class::Final, format!("no event: {error}")))?;
        let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..Default::default() };
        let request = Request::new(Event::url_path(&(), Some(namespace))).create(&params, body);
        self.ask::<serde::de::IgnoredAny>(doing, request).await.map(drop)
    }

    /// Reads a secret.
    pub async fn secret(&self, namespace: &str, name: &str) -> Result<Secret, Error> {
        let doing = format!("reading secret {namespace}/{name}");
        let request = Request::new(Secret::url_path(&(), Some(namespace))).get(name, &GetParams::default());
        self.ask(&doing, request).await
    }

    /// All objects of a selection in their newest state.
    #[cfg(target_os = "linux")]
    pub(crate) async fn list<T>(&self, selection: &Selection) -> Result<Listed<T>, Error>
    where
        T: Resource<DynamicType = ()> + DeserializeOwned,
    {
        self.list_of_age(selection, &Age::Newest, |_| true).await
    }

    /// The objects of a selection that `accepts` accepts, in a state of this age.
    pub(crate) async fn list_of_age<T>(
        &self,
        selection: &Selection,
        age: &Age,
        mut accepts: impl FnMut(&T) -> bool,
    ) -> Result<Listed<T>, Error>
    where
        T: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let doing = format!("listing {}", selection.what);
        let params = ListParams {
            label_selector: selection.labels.clone(),
            field_selector: selection.fields.clone(),
            limit: selection.limit(age),
            ..Default::default()
        };
        let mut params = match age {
            Age::Any => params.match_any(),
            Age::NotOlderThan(version) => params.matching(VersionMatch::NotOlderThan).at(version),
            Age::Newest => params,
        };
        let mut items = Vec::new();
        let mut collect = |item: T| {
            if accepts(&item) {
                items.push(item);
            }
        };
        let mut list = self.page(&doing, selection.request::<T>().list(&params), &mut collect).await?;
        while !list.metadata.rest.is_empty() {
            // The server returns the following pages in the version of the first page, and rejects any other
            // parameter about the version.
            (params.resource_version, params.version_match) = (None, None);
            params.continue_token = Some(std::mem::take(&mut list.metadata.rest));
            let next = self.page(&doing, selection.request::<T>().list(&params), &mut collect).await;
            // The continue token may have expired. The list must then start again; it does not mean that the kind
            // does not exist.
            list = next.map_err(|error| match error.class() {
                Class::Gone => Error::own(&doing, Class::Unavailable, "the list took too long".to_owned()),
                _ => error,
            })?;
        }
        if list.metadata.resource_version.is_empty() {
            return Err(Error::own(
                &doing,
                Class::Final,
                "the API server's answer has no version".to_owned(),
            ));
        }
        Ok(Listed { items, version: list.metadata.resource_version })
    }

    /// The version of the newest state of the API server.
    pub(crate) async fn newest_version<T>(&self, selection: &Selection) -> Result<String, Error>
    where
        T: Resource<DynamicType = ()>,
    {
        let doing = format!("reading the version of {}", selection.what);
        // One object is enough, whatever its labels. The right to read may depend on the fields, but with those of a node
        // the server may read all pods of the cluster from its database to find one.
        let fields = selection.fields.clone().filter(|_| !selection.from_memory);
        let params = ListParams { field_selector: fields, limit: Some(1), ..ListParams::default() };
        let list: List = self.ask(&doing, selection.request::<T>().list(&params)).await?;
        Ok(list.metadata.resource_version)
    }

    /// Reads one page of a list. Its items are parsed one after the other, because all of them together may not fit
    /// into memory.
    async fn page<T>(
        &self,
        doing: &str,
        request: Result<http::Request<Vec<u8>>, request::Error>,
        collect: &mut impl FnMut(T),
    ) -> Result<List, Error>
    where
        T: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let request = request.map_err(|error| Error::of(doing, kube::Error::BuildRequest(error)))?;
        let reading = Box::pin(async {
            let answer =
                self.client.request_stream(request).await.map_err(|error| Error::of(doing, error))?;
            let (mut answer, mut splitter) = (pin!(answer), Splitter::default());
            loop {
                let read = answer.fill_buf().await;
                let piece = read.map_err(|error| Error::of(doing, kube::Error::ReadEvents(error)))?;
                if piece.is_empty() {
                    break;
                }
                splitter.push(piece, |item| {
                    collect(lenient::item(item).map_err(|error| unreadable(doing, &error))?);
                    Ok::<(), Error>(())
                })?;
                let taken = piece.len();
                answer.consume_unpin(taken);
            }
            parse(doing, splitter.rest())
        });
        tokio::time::timeout(CALL, reading).await.unwrap_or_else(|_| Err(Error::late(doing, CALL)))
    }

    /// The changes after `version`. The stream lasts until one side ends it.
    pub(crate) async fn watch<T>(
        &self,
        selection: &Selection,
        version: &str,
    ) -> Result<impl Stream<Item = Result<WatchEvent<T>, Error>> + use<T>, Error>
    where
        T: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let doing = format!("watching {}", selection.what);
        let params = WatchParams {
            label_selector: selection.labels.clone(),
            field_selector: selection.fields.clone(),
            ..Default::default()
        };
        let request = selection.request::<T>().watch(&params.timeout(WATCH_SECONDS), version);
        let request = request.map_err(|error| Error::of(&doing, kube::Error::BuildRequest(error)))?;
        let opening = Box::pin(self.client.request_stream(request));
        let events = match tokio::time::timeout(CALL, opening).await {
            Ok(events) => events.map_err(|error| Error::of(&doing, error))?,
            Err(_) => return Err(Error::late(&doing, CALL)),
        };
        let event = move |line: io::Result<String>| match line.map(|line| lenient::event::<T>(&line)) {
            Ok(Ok(event)) => Some(Ok(event)),
            // The last line, if the connection ends within it.
            Ok(Err(error)) if error.is_eof() => None,
            Ok(Err(error)) => Some(Err(unreadable(&doing, &error))),
            Err(error) => Some(Err(Error::of(&doing, kube::Error::ReadEvents(error)))),
        };
        Ok(events.lines().filter_map(move |line| ready(event(line))))
    }

    /// Makes one call, and parses its answer.
    pub(crate) async fn ask<T: DeserializeOwned>(
        &self,
        doing: &str,
        request: Result<http::Request<Vec<u8>>, request::Error>,
    ) -> Result<T, Error> {
        let text = self.text(doing, request).await?;
        parse(doing, text.as_bytes())
    }

    /// Makes one call. The text of an unreadable answer is dropped by the caller, because kube would log it.
    async fn text(
        &self,
        doing: &str,
        request: Result<http::Request<Vec<u8>>, request::Error>,
    ) -> Result<String, Error> {
        let request = request.map_err(|error| Error::of(doing, kube::Error::BuildRequest(error)))?;
        let asking = Box::pin(self.client.request_text(request));
        match tokio::time::timeout(CALL, asking).await {
            Ok(text) => text.map_err(|error| Error::of(doing, error)),
            Err(_) => Err(Error::late(doing, CALL)),
        }
    }
}

/// Parses an answer.
fn parse<T: DeserializeOwned>(doing: &str, text: &[u8]) -> Result<T, Error> {
    lenient::answer(text).map_err(|error| unreadable(doing, &error))
}

/// An answer, or a part of one, that cannot be parsed. Only the position is reported, because serde's message contains
/// the value.
fn unreadable(doing: &str, error: &serde_json::Error) -> Error {
    let at =
        format!("the API server's answer cannot be read at line {}, column {}", error.line(), error.column());
    Error::own(doing, Class::Final, at)
}

impl Selection {
    /// The page size of a list of this age. A list that may come from the watch cache has none: a limit would make
    /// the API server read it from its database.
    fn limit(&self, age: &Age) -> Option<u32> {
        match (self.page, age) {
            (0, Age::Newest) => Some(PAGE),
            (0, Age::Any | Age::NotOlderThan(_)) => None,
            (page, _) => Some(page),
        }
    }

    fn request<T: Resource<DynamicType = ()>>(&self) -> Request {
        let path = T::url_path(&(), self.namespace.as_deref());
        let in_path = |version: &str| format!("/{version}/");
        Request::new(match self.version {
            Some(version) => path.replacen(&in_path(&T::version(&())), &in_path(version), 1),
            None => path,
        })
    }
}

fn pods(namespace: &str) -> Request {
    Request::new(Pod::url_path(&(), Some(namespace)))
}
