//! How each type of a setting is read from the file, read from a variable or flag, and written.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value as Tree;

use super::names::{is_dns_label, is_dns_subdomain, is_label_key};
use super::pattern::{Pattern, Patterns};
use super::problem::{Report, hint, nearest};
use super::selector::check_label;
use super::settings::{Identity, Namespace, NodeLabel, Prefix};
use super::{duration, pattern};

/// A setting's type. Reading reports every problem; `None` means that there was one.
pub(super) trait Value: Sized {
    fn from_tree(tree: &Tree, report: &mut Report) -> Option<Self>;
    fn from_text(text: &str, report: &mut Report) -> Option<Self>;
    fn to_tree(&self) -> Tree;
}

/// A value that is one text everywhere.
pub(super) trait Text: Sized {
    /// The end of "expected …".
    fn expected() -> String;
    fn parse(text: &str) -> Result<Self, Refusal>;
    fn print(&self) -> String;
}

/// Why a text is refused: simply not what is expected, or for a reason of its own.
pub(super) enum Refusal {
    Unexpected,
    Because(String),
}

impl<T: Text> Value for T {
    fn from_tree(tree: &Tree, report: &mut Report) -> Option<Self> {
        match tree {
            Tree::String(text) => Self::from_text(text, report),
            other => unexpected(report, &Self::expected(), other),
        }
    }

    fn from_text(text: &str, report: &mut Report) -> Option<Self> {
        match Self::parse(text) {
            Ok(value) => Some(value),
            Err(Refusal::Because(why)) => {
                report.problem(format!("{why}, got {text:?}"));
                None
            }
            Err(Refusal::Unexpected) => unexpected(report, &Self::expected(), &Tree::from(text)),
        }
    }

    fn to_tree(&self) -> Tree {
        Tree::from(self.print())
    }
}

/// Reports "expected …, got …", with what was got cut to a readable length.
pub(super) fn unexpected<T>(report: &mut Report, expected: &str, got: &Tree) -> Option<T> {
    let mut shown = got.to_string();
    if let Some((end, _)) = shown.char_indices().nth(60) {
        shown.replace_range(end.., "…");
    }
    report.problem(format!("expected {expected}, got {shown}"));
    None
}

impl Value for bool {
    fn from_tree(tree: &Tree, report: &mut Report) -> Option<Self> {
        tree.as_bool().or_else(|| unexpected(report, "true or false", tree))
    }

    fn from_text(text: &str, report: &mut Report) -> Option<Self> {
        text.to_ascii_lowercase().parse().ok().or_else(|| unexpected(report, "true or false", &Tree::from(text)))
    }

    fn to_tree(&self) -> Tree {
        Tree::from(*self)
    }
}

macro_rules! whole_numbers {
    ($($type:ty),+) => {$(
        impl Value for $type {
            fn from_tree(tree: &Tree, report: &mut Report) -> Option<Self> {
                let number = tree.as_u64().and_then(|number| number.try_into().ok());
                number.or_else(|| unexpected(report, &format!("a whole number up to {}", Self::MAX), tree))
            }

            fn from_text(text: &str, report: &mut Report) -> Option<Self> {
                // A text that is a number is read as one; any other is reported as it is.
                let tree = text.trim().parse::<u64>().map_or_else(|_| Tree::from(text), Tree::from);
                Self::from_tree(&tree, report)
            }

            fn to_tree(&self) -> Tree {
                Tree::from(*self)
            }
        }
    )+};
}
whole_numbers!(u16, u32);

impl Text for Duration {
    fn expected() -> String {
        "a duration such as 300s, 1h30m or 500ms".to_owned()
    }

    fn parse(text: &str) -> Result<Self, Refusal> {
        duration::parse(text).ok_or(Refusal::Unexpected)
    }

    fn print(&self) -> String {
        duration::print(*self)
    }
}

/// An empty text is none.
impl Text for Option<String> {
    fn expected() -> String {
        "a text".to_owned()
    }

    fn parse(text: &str) -> Result<Self, Refusal> {
        Ok((!text.is_empty()).then(|| text.to_owned()))
    }

    fn print(&self) -> String {
        self.clone().unwrap_or_default()
    }
}

impl Text for Namespace {
    fn expected() -> String {
        "a namespace: at most 63 lower-case letters, digits and `-`".to_owned()
    }

    fn parse(text: &str) -> Result<Self, Refusal> {
        if is_dns_label(text) { Ok(Self(text.to_owned())) } else { Err(Refusal::Unexpected) }
    }

    fn print(&self) -> String {
        self.0.clone()
    }
}

impl Text for Prefix {
    fn expected() -> String {
        "a domain such as perennial.dev".to_owned()
    }

    fn parse(text: &str) -> Result<Self, Refusal> {
        let domain = text.strip_suffix('/').unwrap_or(text);
        if is_dns_subdomain(domain) { Ok(Self(domain.to_owned())) } else { Err(Refusal::Unexpected) }
    }

    fn print(&self) -> String {
        self.0.clone()
    }
}

impl Text for NodeLabel {
    fn expected() -> String {
        "a label as key=value".to_owned()
    }

    fn parse(text: &str) -> Result<Self, Refusal> {
        let (key, value) = text.split_once('=').ok_or(Refusal::Unexpected)?;
        check_label(key, value).map_err(Refusal::Because)?;
        Ok(Self { key: key.to_owned(), value: value.to_owned() })
    }

    fn print(&self) -> String {
        format!("{}={}", self.key, self.value)
    }
}

impl Text for Identity {
    fn expected() -> String {
        "name, providerID, systemUUID, machineID, label:KEY or annotation:KEY".to_owned()
    }

    fn parse(text: &str) -> Result<Self, Refusal> {
        let keyed = |key: &str, identity: fn(String) -> Self| {
            let wrong = || Refusal::Because(format!("{key:?} is not a key of a label or annotation"));
            if is_label_key(key) { Ok(identity(key.to_owned())) } else { Err(wrong()) }
        };
        match text.split_once(':') {
            Some(("label", key)) => keyed(key, Self::Label),
            Some(("annotation", key)) => keyed(key, Self::Annotation),
            Some(_) => Err(Refusal::Unexpected),
            None => match text.to_ascii_lowercase().as_str() {
                "name" => Ok(Self::Name),
                "providerid" => Ok(Self::ProviderId),
                "systemuuid" => Ok(Self::SystemUuid),
                "machineid" => Ok(Self::MachineId),
                _ => Err(Refusal::Unexpected),
            },
        }
    }

    fn print(&self) -> String {
        match self {
            Self::Name => "name".to_owned(),
            Self::ProviderId => "providerID".to_owned(),
            Self::SystemUuid => "systemUUID".to_owned(),
            Self::MachineId => "machineID".to_owned(),
            Self::Label(key) => format!("label:{key}"),
            Self::Annotation(key) => format!("annotation:{key}"),
        }
    }
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.print())
    }
}

/// Reading by hand, for code that has a text and no report: the same rules, the message as it is.
macro_rules! from_str {
    ($($type:ty),+) => {$(
        impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                Text::parse(text).map_err(|refusal| match refusal {
                    Refusal::Unexpected => format!("expected {}", Self::expected()),
                    Refusal::Because(why) => why,
                })
            }
        }
    )+};
}
from_str!(Identity, Namespace, NodeLabel, Prefix);

impl Text for Pattern {
    fn expected() -> String {
        "a pattern such as example.com/*".to_owned()
    }

    fn parse(text: &str) -> Result<Self, Refusal> {
        pattern::Pattern::parse(text).map_err(|error| Refusal::Because(error.to_string()))
    }

    fn print(&self) -> String {
        self.to_string()
    }
}

/// Lists: an array in the file, commas between the items elsewhere; one item may stand for itself in the file.
impl<T: Value> Value for Vec<T> {
    fn from_tree(tree: &Tree, report: &mut Report) -> Option<Self> {
        match tree {
            Tree::String(text) => Self::from_text(text, report),
            Tree::Array(items) => collect(items, report, T::from_tree),
            other => unexpected(report, "a list", other),
        }
    }

    fn from_text(text: &str, report: &mut Report) -> Option<Self> {
        let items: Vec<&str> = text.split(',').map(str::trim).filter(|item| !item.is_empty()).collect();
        match items[..] {
            [item] => T::from_text(item, report).map(|item| vec![item]),
            _ => collect(&items, report, |item, report| T::from_text(item, report)),
        }
    }

    fn to_tree(&self) -> Tree {
        self.iter().map(T::to_tree).collect()
    }
}

/// Reads all items, so that all their problems are reported.
pub(super) fn collect<I, T>(
    items: &[I],
    report: &mut Report,
    read: impl Fn(&I, &mut Report) -> Option<T>,
) -> Option<Vec<T>> {
    let read = |(index, item)| report.within(&format!("[{index}]"), |report| read(item, report));
    let values: Vec<Option<T>> = items.iter().enumerate().map(read).collect();
    values.into_iter().collect()
}

impl Value for Patterns {
    fn from_tree(tree: &Tree, report: &mut Report) -> Option<Self> {
        Vec::from_tree(tree, report).map(|patterns: Vec<Pattern>| patterns.into())
    }

    fn from_text(text: &str, report: &mut Report) -> Option<Self> {
        Vec::from_text(text, report).map(|patterns: Vec<Pattern>| patterns.into())
    }

    fn to_tree(&self) -> Tree {
        self.as_slice().iter().map(Text::print).collect()
    }
}

impl<T: Value + Ord> Value for BTreeSet<T> {
    fn from_tree(tree: &Tree, report: &mut Report) -> Option<Self> {
        Vec::from_tree(tree, report).map(|items| items.into_iter().collect())
    }

    fn from_text(text: &str, report: &mut Report) -> Option<Self> {
        Vec::from_text(text, report).map(|items| items.into_iter().collect())
    }

    fn to_tree(&self) -> Tree {
        self.iter().map(T::to_tree).collect()
    }
}

/// Reads the fields of a mapping by name; a field that `read` does not know is reported with the nearest known name.
pub(super) fn fields(tree: &Tree, known: &[&str], report: &mut Report, mut read: impl FnMut(&str, &Tree, &mut Report)) {
    let Tree::Object(map) = tree else {
        let _: Option<()> = unexpected(report, "a mapping", tree);
        return;
    };
    for (name, field) in map.iter().filter(|(_, field)| !field.is_null()) {
        report.within(&format!(".{name}"), |report| {
            if known.contains(&name.as_str()) {
                read(name, field, report);
            } else {
                report.problem(format!("unknown key{}", hint(nearest(name, known.iter().copied()))));
            }
        });
    }
}
