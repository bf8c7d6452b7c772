//! The YAML file: read key by key, so that everything wrong in it is found at once, and written back.

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value as Tree;
use serde_saphyr::UserMessageFormatter;

use super::keys::{KEYS, Key, children};
use super::problem::{Report, Source, hint, nearest};
use super::settings::Settings;
use super::value::unexpected;

/// Reads a file over the settings. Returns the paths that it set.
pub(super) fn read(text: &str, settings: &mut Settings, report: &mut Report) -> Vec<&'static str> {
    let mut set = Vec::new();
    match parse(text) {
        Ok(tree) => report.from(Source::File, "", |report| section("", &tree, settings, report, &mut set)),
        Err(message) => report.from(Source::File, "", |report| report.problem(message)),
    }
    set
}

fn parse(text: &str) -> Result<Tree, String> {
    let options = serde_saphyr::options! { with_snippet: false };
    match serde_saphyr::from_str_with_options::<Option<Tree>>(text, options) {
        Ok(tree) => Ok(tree.unwrap_or(Tree::Null)),
        Err(error) => Err(format!("not readable as YAML: {}", error.render_with_formatter(&UserMessageFormatter))),
    }
}

fn section(path: &str, tree: &Tree, settings: &mut Settings, report: &mut Report, set: &mut Vec<&'static str>) {
    let Tree::Object(map) = tree else {
        if !tree.is_null() {
            let _: Option<()> = unexpected(report, "a mapping", tree);
        }
        return;
    };
    let known = children(path);
    for (name, value) in map {
        let (at, part) = match path {
            "" => (name.clone(), name.clone()),
            _ => (format!("{path}.{name}"), format!(".{name}")),
        };
        report.within(&part, |report| match Key::named(&at) {
            // A key without a value is a key that is not there.
            Some(_) if value.is_null() => {}
            Some(key) => {
                set.push(key.path);
                (key.from_tree)(settings, value, report);
            }
            None if known.contains(&name.as_str()) => section(&at, value, settings, report, set),
            None => report.problem(format!("unknown key{}", hint(suggestion(path, name, &known)))),
        });
    }
}

/// A sibling with nearly this name, or a key with just this name that belongs elsewhere.
fn suggestion(path: &str, name: &str, siblings: &[&str]) -> Option<String> {
    let elsewhere = || KEYS.iter().map(|key| key.path).find(|path| path.rsplit('.').next() == Some(name));
    let beside = |sibling: &str| if path.is_empty() { sibling.to_owned() } else { format!("{path}.{sibling}") };
    nearest(name, siblings.iter().copied()).map(beside).or_else(|| elsewhere().map(str::to_owned))
}

/// The whole of the settings as a file that reads back to the same.
pub fn render(settings: &Settings) -> String {
    // Maps, lists and scalars only: there is nothing in it that could fail to be written.
    serde_saphyr::to_string(&Section { path: "", settings }).unwrap_or_default()
}

/// What differs from the defaults, with the namespace, as a file that reads back to the same.
pub fn render_changes(settings: &Settings) -> String {
    let defaults = Settings::default();
    let mut file = Tree::Object(serde_json::Map::new());
    for key in KEYS {
        let value = (key.to_tree)(settings);
        // The default of the burst depends on another key.
        let always = ["namespace", "controller.burst"].contains(&key.path);
        if !always && value == (key.to_tree)(&defaults) {
            continue;
        }
        let place = key.path.split('.').fold(&mut file, |place, name| &mut place[name]);
        *place = value;
    }
    serde_saphyr::to_string(&file).unwrap_or_default()
}

/// A section in the order of the table.
struct Section<'a> {
    path: &'a str,
    settings: &'a Settings,
}

impl Serialize for Section<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for name in children(self.path) {
            let path = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
            match Key::named(&path) {
                Some(key) => map.serialize_entry(name, &(key.to_tree)(self.settings))?,
                None => map.serialize_entry(name, &Section { path: &path, settings: self.settings })?,
            }
        }
        map.end()
    }
}
