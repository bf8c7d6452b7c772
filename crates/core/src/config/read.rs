//! Reads a document into a type, and finds everything that is wrong with it, where serde stops at
//! the first problem.

use serde::de::DeserializeOwned;
use serde_json::Value as Tree;
use serde_path_to_error::Segment;

use super::keys::join;
use super::problem::{hint, nearest, shown};

/// A refused part of a document: its path, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) path: String,
    pub(crate) message: String,
}

/// Reads a document. While a part is refused, notes why, removes that part and reads again.
pub(crate) fn read<T: DeserializeOwned>(document: &Tree) -> Result<T, Vec<Refusal>> {
    let mut rest = document.clone();
    let mut removed = Removed::default();
    let mut refusals: Vec<Refusal> = Vec::new();
    loop {
        let error = match serde_path_to_error::deserialize::<_, T>(&rest) {
            Ok(value) if refusals.is_empty() => return Ok(value),
            Ok(_) => return Err(refusals),
            Err(error) => error,
        };
        let segments: Vec<Segment> = error.path().iter().cloned().collect();
        let path = removed.original_path(&segments);
        let message = plain(&error.inner().to_string(), part(&mut rest, &segments));
        // A part that lacks something after a removal was refused only for that.
        if !refusals.iter().any(|inner| inner.path.starts_with(&path)) {
            refusals.push(Refusal { path, message });
        }
        if !removed.remove(&mut rest, &segments) {
            return Err(refusals);
        }
    }
}

/// Removes the keys without a value: they are the same as keys that are not there.
pub(crate) fn without_nulls(tree: Tree) -> Tree {
    match tree {
        Tree::Object(map) => {
            let set = map.into_iter().filter(|(_, value)| !value.is_null());
            set.map(|(name, value)| (name, without_nulls(value))).collect()
        }
        Tree::Array(items) => items.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

/// Items that were removed from lists: the path of the list and the index in the original document.
#[derive(Default)]
struct Removed(Vec<(String, usize)>);

impl Removed {
    /// Returns the index that an item of a list had before anything was removed.
    fn original_index(&self, list: &str, index: usize) -> usize {
        let mut gone: Vec<usize> = self.0.iter().filter(|(path, _)| path == list).map(|(_, index)| *index).collect();
        gone.sort_unstable();
        gone.into_iter().fold(index, |index, gone| if gone <= index { index + 1 } else { index })
    }

    /// Returns the path that a part had before anything was removed.
    fn original_path(&self, segments: &[Segment]) -> String {
        segments.iter().fold(String::new(), |path, segment| match segment {
            Segment::Seq { index } => format!("{path}[{}]", self.original_index(&path, *index)),
            Segment::Map { key } => join(&path, key),
            Segment::Enum { .. } | Segment::Unknown => path,
        })
    }

    /// Removes a part of the document. False if there is no such part.
    fn remove(&mut self, document: &mut Tree, segments: &[Segment]) -> bool {
        let Some((child, parents)) = segments.split_last() else { return false };
        match (part(document, parents), child) {
            (Some(Tree::Object(map)), Segment::Map { key }) => map.remove(key).is_some(),
            (Some(Tree::Array(items)), Segment::Seq { index }) if *index < items.len() => {
                items.remove(*index);
                let list = self.original_path(parents);
                let index = self.original_index(&list, *index);
                self.0.push((list, index));
                true
            }
            _ => false,
        }
    }
}

fn part<'a>(document: &'a mut Tree, segments: &[Segment]) -> Option<&'a mut Tree> {
    segments.iter().try_fold(document, |tree, segment| match segment {
        Segment::Seq { index } => tree.get_mut(index),
        Segment::Map { key } => tree.get_mut(key),
        Segment::Enum { .. } | Segment::Unknown => Some(tree),
    })
}

/// Turns serde's messages about types and names into the words of the reference page.
fn plain(message: &str, got: Option<&mut Tree>) -> String {
    let Some((start, expected)) = message.rsplit_once(", expected ") else { return message.to_owned() };
    if start.starts_with("unknown field") {
        return format!("unknown key{}", hint(nearest(names(start).next().unwrap_or_default(), names(expected))));
    }
    if !start.starts_with("invalid type") && !start.starts_with("invalid value") {
        return message.to_owned();
    }
    let expected = match expected {
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "a mapping",
        "i32" => "a whole number",
        "u16" => "a whole number up to 65535",
        "u32" => "a whole number up to 4294967295",
        other => other,
    };
    let got = got.map_or(Tree::Null, |got| got.clone());
    let quotes = if expected == "a string" && !got.is_object() && !got.is_array() { "; put it in quotes" } else { "" };
    format!("expected {expected}, got {}{quotes}", shown(&got))
}

/// The names between backticks.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;
    use serde_json::json;

    fn refusals(selector: &Tree) -> Vec<String> {
        let document = json!({ "controller": { "namespaceSelector": selector } });
        let refusals = read::<Settings>(&document).unwrap_err().into_iter();
        refusals.map(|refusal| format!("{}: {}", refusal.path, refusal.message)).collect()
    }

    #[test]
    fn every_refused_part_is_reported_with_its_original_path() {
        let expressions = json!([
            {"key": "x", "operator": "Equals"},
            {"key": "x", "operator": "Exists"},
            {"key": 7, "operator": "Exists", "valus": []},
        ]);

        let found =
            refusals(&json!({"matchExpressions": expressions, "matchLabels": {"a": 1, "b c": "x", "d": "e f"}}));

        let at = "controller.namespaceSelector";
        assert_eq!(
            found,
            [
                format!(
                    "{at}.matchExpressions[0].operator: expected In, NotIn, Exists or DoesNotExist, got \"Equals\""
                ),
                format!("{at}.matchExpressions[2].key: expected a string, got 7; put it in quotes"),
                format!("{at}.matchExpressions[2].valus: unknown key; did you mean `values`?"),
                format!("{at}.matchLabels.a: expected a string, got 1; put it in quotes"),
                format!("{at}.matchLabels.b c: expected a label key, got \"b c\""),
                format!("{at}.matchLabels.d: expected a label value, got \"e f\""),
            ]
        );
    }

    #[test]
    fn a_value_of_the_wrong_type_is_refused_as_a_whole() {
        assert_eq!(
            refusals(&json!(5)),
            ["controller.namespaceSelector: expected a label selector: a mapping with matchLabels and \
              matchExpressions, or one line as for kubectl -l, got 5"]
        );
    }
}
