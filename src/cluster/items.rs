//! Splits a list from the API server into its items while it arrives, so that only one item at a time is in memory.
//! Any user can create pods, so a list may be larger than the memory limit of this process.
//!
//! Only finds where an item begins and ends. It must not validate: invalid JSON is found when the items are parsed.

/// The state of the splitter.
#[derive(Debug, Default)]
pub(super) struct Splitter {
    /// The list without its items.
    outer: Vec<u8>,
    /// The bytes of the current item so far.
    item: Vec<u8>,
    /// The number of open objects and arrays.
    depth: usize,
    /// The last complete string at the top level, with its quotes: the name of the next member.
    name: Vec<u8>,
    text: Text,
    in_items: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Text {
    #[default]
    Outside,
    Inside,
    /// In a string, after a backslash.
    Escaped,
}

/// The depth of the list's members, and of the items within their array.
const MEMBERS: usize = 1;
const ITEMS: usize = 2;

impl Splitter {
    /// Processes the next piece of the answer, and calls `each` for every completed item.
    ///
    /// # Errors
    /// The first error of `each`.
    pub(super) fn push<E>(
        &mut self,
        piece: &[u8],
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        for byte in piece {
            if self.take(*byte) {
                each(&self.item)?;
                self.item.clear();
            }
        }
        Ok(())
    }

    /// The list without its items; complete once the whole answer has been processed.
    pub(super) fn rest(&self) -> &[u8] {
        &self.outer
    }

    /// Processes one byte; true if it completes an item.
    fn take(&mut self, byte: u8) -> bool {
        if self.text != Text::Outside {
            self.text = match (self.text, byte) {
                (Text::Inside, b'\\') => Text::Escaped,
                (Text::Inside, b'"') => Text::Outside,
                _ => Text::Inside,
            };
            self.push_byte(byte);
            return false;
        }
        match byte {
            b'"' => {
                self.text = Text::Inside;
                if self.depth == MEMBERS {
                    self.name.clear();
                }
            }
            b'{' | b'[' => {
                self.depth += 1;
                if byte == b'[' && self.depth == ITEMS && self.name == b"\"items\"" {
                    self.outer.push(byte);
                    self.in_items = true;
                    return false;
                }
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                if self.in_items && self.depth < ITEMS {
                    self.in_items = false;
                } else if self.in_items && self.depth == ITEMS {
                    self.item.push(byte);
                    return true;
                }
            }
            // A comma between two items.
            b',' if self.in_items && self.depth == ITEMS => return false,
            _ => {}
        }
        self.push_byte(byte);
        false
    }

    fn push_byte(&mut self, byte: u8) {
        if self.in_items {
            self.item.push(byte);
        } else {
            if self.depth == MEMBERS && (self.text != Text::Outside || byte == b'"') {
                self.name.push(byte);
            }
            self.outer.push(byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// Splits `text` in pieces of `piece` bytes; returns the items and the rest.
    fn split(text: &str, piece: usize) -> (Vec<Value>, Value) {
        let (mut splitter, mut items) = (Splitter::default(), Vec::new());
        for piece in text.as_bytes().chunks(piece) {
            let Ok(()) = splitter.push(piece, |item| {
                items.push(serde_json::from_slice(item).unwrap());
                Ok::<(), Infallible>(())
            });
        }
        (items, serde_json::from_slice(splitter.rest()).unwrap())
    }

    #[test]
    fn only_the_lists_own_items_are_cut_out() {
        let odd = r#"a "quoted" \ text, with } ] and "items":[{"#;
        let items = [json!({"spec": {"items": [{"x": [1, {}]}], odd: odd}}), json!({}), json!({"a": []})];
        for list in [
            json!({"kind": "PodList", "metadata": {"continue": "items", "items": [7, {}]}, "items": items}),
            json!({"items": items, "kind": odd, "metadata": {"resourceVersion": "7"}}),
            json!({"items": items, "more": [1, [2]], "name": "items"}),
        ] {
            for text in [list.to_string(), serde_json::to_string_pretty(&list).unwrap()] {
                for piece in [1, 7, text.len()] {
                    let (found, rest) = split(&text, piece);
                    assert_eq!(found, items, "{text}");
                    let mut expected = list.clone();
                    expected["items"] = json!([]);
                    assert_eq!(rest, expected, "{text}");
                }
            }
        }
        assert_eq!(split(r#"{"items":null}"#, 3), (vec![], json!({"items": null})));
        assert_eq!(split("[1,[2]]", 2), (vec![], json!([1, [2]])), "no list of the API server's");
    }

    #[test]
    fn no_more_than_one_item_is_kept() {
        let (mut splitter, mut count) = (Splitter::default(), 0_u32);
        let item = format!("{{\"x\":\"{}\"}},", "y".repeat(1000));
        splitter.push(b"{\"items\":[", |_| Ok::<(), Infallible>(())).unwrap();
        for _ in 0..1000 {
            splitter
                .push(item.as_bytes(), |_| {
                    count += 1;
                    Ok::<(), Infallible>(())
                })
                .unwrap();
        }
        assert_eq!(count, 1000);
        assert!(splitter.item.capacity() < 4096 && splitter.outer.len() < 100);
    }

    proptest! {
        /// Any input: no panic, and no byte is returned twice.
        #[test]
        fn any_text_is_taken(text in r#"("items":|[\]\[{}",:\\a ]){0,40}"#, piece in 1_usize..9) {
            let (mut splitter, mut items) = (Splitter::default(), 0);
            for piece in text.as_bytes().chunks(piece) {
                let Ok(()) = splitter.push(piece, |item| {
                    items += item.len();
                    Ok::<(), Infallible>(())
                });
            }
            prop_assert!(splitter.outer.len() + splitter.item.len() + items <= text.len());
        }
    }
}
