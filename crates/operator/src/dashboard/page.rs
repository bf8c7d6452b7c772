//! The files of the page, embedded in the program.

use axum::{
    extract::Path,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use std::collections::HashMap;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

macro_rules! files {
    ($($name:literal: $kind:expr),+ $(,)?) => {
        /// Name, content type and content of every file.
        pub(super) const FILES: &[(&str, &str, &str)] =
            &[$(($name, $kind, include_str!(concat!("page/", $name)))),+];
    };
}

files! {
    "index.html": HTML,
    "base.css": CSS,
    "views.css": CSS,
    "icon.svg": SVG,
    "app.js": JS,
    "chart.js": JS,
    "commands.js": JS,
    "format.js": JS,
    "links.js": JS,
    "list.js": JS,
    "node.js": JS,
    "nodes.js": JS,
    "overview.js": JS,
    "policies.js": JS,
    "requests.js": JS,
    "safe_html.js": JS,
    "states.js": JS,
    "stream.js": JS,
    "theme.js": JS,
    "workload.js": JS,
    "workloads.js": JS,
}

pub(super) async fn index() -> Response {
    named("index.html")
}

/// The path may contain a token before the name.
pub(super) async fn file(Path(path): Path<HashMap<String, String>>) -> Response {
    named(path.get("file").map_or("", String::as_str))
}

fn named(name: &str) -> Response {
    match FILES.iter().find(|(known, ..)| *known == name) {
        Some((_, kind, text)) => ([(header::CONTENT_TYPE, *kind)], *text).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_loads_nothing_from_other_hosts_and_inserts_no_markup() {
        for (name, _, text) in FILES {
            let namespaces = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!namespaces.contains("://"), "{name} names another host");
            for sink in
                ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", " style=\"", "onclick=\""]
            {
                assert!(!text.contains(sink), "{name} has {sink}");
            }
        }
    }

    #[test]
    fn every_imported_module_is_served() {
        for (name, _, text) in FILES.iter().filter(|(_, kind, _)| *kind == JS) {
            for import in text.lines().filter_map(|line| line.split_once(" from \"./")).map(|(_, rest)| rest) {
                let import = import.trim_end_matches("\";");
                assert!(FILES.iter().any(|(known, ..)| *known == import), "{name} imports {import}");
            }
        }
    }
}
