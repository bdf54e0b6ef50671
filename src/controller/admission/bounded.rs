//! Bounds how much of a review is read into memory. The sender of a review controls its size, so every text and
//! list has a limit, fields that are only searched are not stored, and an object's cost is computed before it is
//! decoded. Must not decide a review.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Part of every message about an exceeded limit.
const MORE: &str = "is more than a review may have";
/// Most bytes of a name, a kind or an operation.
const NAME: usize = 253;
/// Most bytes of a user's name.
const USER: usize = 1 << 10;
/// Most groups of a user, and most bytes of all of them.
const GROUPS: (usize, usize) = (1024, 256 << 10);
/// Limits of `userInfo.extra`, which an authenticator fills: keys, texts, and bytes of all of them.
const EXTRA: (usize, usize, usize) = (256, 1024, 64 << 10);
/// Bytes that one value costs in memory: in a tree, in its copies, with its key.
const OF_VALUE: usize = 256;
/// Bytes that an object in a list costs. The largest such type is a pod's volume.
const OF_LISTED: usize = 4 << 10;
/// The most that one object may cost.
const OF_OBJECT: usize = 24 << 20;

/// Why a review is not read.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("{0}")]
    TooMuch(String),
    #[error("no AdmissionReview: {0}")]
    Other(String),
}

impl From<serde_json::Error> for Unreadable {
    fn from(error: serde_json::Error) -> Self {
        let text = error.to_string();
        // The position in the review helps no user.
        let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what).to_owned();
        if what.contains(MORE) { Self::TooMuch(what) } else { Self::Other(what) }
    }
}

fn more<E: Error>(field: &str, what: impl fmt::Display) -> E {
    E::custom(format_args!("{field}: {what} {MORE}"))
}

/// Reads a text of at most this many bytes; `None` for null.
struct Text(&'static str, usize);

impl<'de> DeserializeSeed<'de> for Text {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl Visitor<'_> for Text {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a text as {}", self.0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        if text.len() > self.1 {
            return Err(more(self.0, format_args!("a text of {} bytes", text.len())));
        }
        Ok(Some(text.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

/// Reads a list of texts within the number and the bytes that are left, and subtracts what was read from both.
struct Texts<'a>(&'static str, &'a Cell<usize>, &'a Cell<usize>);

impl<'de> DeserializeSeed<'de> for Texts<'_> {
    type Value = Vec<String>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Texts<'_> {
    type Value = Vec<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of texts as {}", self.0)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let Self(field, count, bytes) = self;
        let mut texts = Vec::new();
        while let Some(text) = list.next_element_seed(Text(field, bytes.get()))? {
            let text = text.unwrap_or_default();
            let left = count.get().checked_sub(1).ok_or_else(|| more(field, "the number of its texts"))?;
            count.set(left);
            bytes.set(bytes.get() - text.len());
            texts.push(text);
        }
        Ok(texts)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Vec::new())
    }
}

struct Extra;

impl<'de> Visitor<'de> for Extra {
    type Value = BTreeMap<String, Vec<String>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("lists of texts by key as userInfo.extra")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        let field = "userInfo.extra";
        let (keys, texts, bytes) = EXTRA;
        let (texts, bytes) = (Cell::new(texts), Cell::new(bytes));
        let mut extra = BTreeMap::new();
        while let Some(key) = fields.next_key_seed(Text(field, bytes.get()))? {
            let key = key.unwrap_or_default();
            if extra.len() >= keys {
                return Err(more(field, "the number of its keys"));
            }
            bytes.set(bytes.get() - key.len());
            extra.insert(key, fields.next_value_seed(Texts(field, &texts, &bytes))?);
        }
        Ok(extra)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(BTreeMap::new())
    }
}

macro_rules! texts {
    ($($name:ident: $field:literal, $most:expr;)*) => {$(
        pub(super) fn $name<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
            Ok(Text($field, $most).deserialize(from)?.unwrap_or_default())
        }
    )*};
}

texts! {
    uid: "uid", NAME;
    group: "kind.group", NAME;
    kind: "kind.kind", NAME;
    sub_resource: "subResource", NAME;
    operation: "operation", NAME;
    name: "name", NAME;
    namespace: "namespace", NAME;
    username: "userInfo.username", USER;
    user_uid: "userInfo.uid", USER;
}

/// Reads a name or uid in an object's metadata.
pub(super) fn of_metadata<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    Text("object.metadata", NAME).deserialize(from)
}

pub(super) fn groups<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let (count, bytes) = GROUPS;
    Texts("userInfo.groups", &Cell::new(count), &Cell::new(bytes)).deserialize(from)
}

pub(super) fn extra<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, Vec<String>>, D::Error> {
    from.deserialize_any(Extra)
}

/// True for a list that has at least one entry. Stores nothing.
pub(super) fn is_filled<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    struct Filled;
    impl<'de> Visitor<'de> for Filled {
        type Value = bool;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<bool, A::Error> {
            let filled = list.next_element::<IgnoredAny>()?.is_some();
            while list.next_element::<IgnoredAny>()?.is_some() {}
            Ok(filled)
        }

        fn visit_unit<E>(self) -> Result<bool, E> {
            Ok(false)
        }
    }
    from.deserialize_any(Filled)
}

/// True for an object that has a field of this name. Stores nothing.
pub(super) fn has_key<'de, D: Deserializer<'de>>(from: D, key: &'static str) -> Result<bool, D::Error> {
    struct Is(&'static str);
    impl<'de> DeserializeSeed<'de> for Is {
        type Value = bool;

        fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<bool, D::Error> {
            from.deserialize_any(self)
        }
    }
    impl Visitor<'_> for Is {
        type Value = bool;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a key")
        }

        fn visit_str<E>(self, key: &str) -> Result<bool, E> {
            Ok(key == self.0)
        }
    }
    struct Has(&'static str);
    impl<'de> Visitor<'de> for Has {
        type Value = bool;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<bool, A::Error> {
            let mut has = false;
            while let Some(is) = fields.next_key_seed(Is(self.0))? {
                fields.next_value::<IgnoredAny>()?;
                has |= is;
            }
            Ok(has)
        }

        fn visit_unit<E>(self) -> Result<bool, E> {
            Ok(false)
        }
    }
    from.deserialize_any(Has(key))
}

/// The memory that an object would cost. Deserializing it fails as soon as the cost exceeds the limit of one
/// object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Weight(pub(super) usize);

impl<'de> Deserialize<'de> for Weight {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let weight = Cell::new(0);
        Weigh { weight: &weight, listed: false }.deserialize(from)?;
        Ok(Self(weight.get()))
    }
}

#[derive(Clone, Copy)]
struct Weigh<'a> {
    weight: &'a Cell<usize>,
    /// True for an entry of a list.
    listed: bool,
}

impl Weigh<'_> {
    fn add<E: Error>(self, cost: usize) -> Result<(), E> {
        self.weight.set(self.weight.get() + cost);
        if self.weight.get() > OF_OBJECT {
            return Err(more("object", "the number of its fields and entries"));
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Weigh<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Weigh<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        self.add(OF_VALUE)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        self.add(OF_VALUE)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        self.add(OF_VALUE)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.add(OF_VALUE)
    }

    /// The bytes of texts are not added: they are bounded by the size of the body.
    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        self.add(OF_VALUE)
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.add(OF_VALUE)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        self.add(OF_VALUE)?;
        while list.next_element_seed(Self { listed: true, ..self })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        self.add(if self.listed { OF_LISTED } else { OF_VALUE })?;
        while fields.next_key::<IgnoredAny>()?.is_some() {
            fields.next_value_seed(Self { listed: false, ..self })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Container, EphemeralContainer, PersistentVolumeClaim, Volume};

    use super::*;
    use crate::api::hook_template::Metric;

    #[test]
    fn no_object_in_a_list_is_larger_than_what_it_weighs() {
        let sizes =
            [size_of::<Container>(), size_of::<EphemeralContainer>(), size_of::<Volume>()].into_iter();
        let sizes = sizes.chain([size_of::<PersistentVolumeClaim>(), size_of::<Metric>()]);
        assert!(sizes.max() < Some(OF_LISTED));
    }

    #[test]
    fn an_object_weighs_what_is_made_of_it() {
        let weight = |text: &str| serde_json::from_str::<Weight>(text).map(|weight| weight.0);
        assert_eq!(weight("null").unwrap(), OF_VALUE);
        assert_eq!(weight(r#"{"a":[1,{},[true]],"b":{}}"#).unwrap(), 6 * OF_VALUE + OF_LISTED);
        let list = |entry: &str, count: usize| format!("[{}]", vec![entry; count].join(","));
        weight(&list("1", OF_OBJECT / OF_VALUE - 1)).unwrap();
        weight(&list("{}", OF_OBJECT / OF_LISTED - 1)).unwrap();
        for text in [list("1", OF_OBJECT / OF_VALUE), list("{}", OF_OBJECT / OF_LISTED)] {
            let error = Unreadable::from(weight(&text).unwrap_err());
            assert!(matches!(&error, Unreadable::TooMuch(_)), "{error}");
        }
        assert!(matches!(Unreadable::from(weight("{").unwrap_err()), Unreadable::Other(_)));
    }
}
