//! The documentation agrees with itself and with the sources: links lead somewhere, the site has
//! every page, and the reference lists every metric, Event, annotation, setting and field.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure here fails the test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Component, Path, PathBuf},
};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Returns all files below a folder whose names end like this, relative to the repository.
fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(Path::new(ROOT).join(&folder)).unwrap() {
            let entry = entry.unwrap();
            let path = folder.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            } else if path.to_str().unwrap().ends_with(ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn read(path: impl AsRef<Path>) -> String {
    let path = Path::new(ROOT).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns all pages: those of the root, of `docs` and of the crates.
fn pages() -> Vec<PathBuf> {
    let mut pages = files("docs", ".md");
    for entry in fs::read_dir(ROOT).unwrap() {
        let name = PathBuf::from(entry.unwrap().file_name());
        if name.extension().is_some_and(|ending| ending == "md") {
            pages.push(name);
        }
    }
    pages.extend(["crates", "charts", ".github"].into_iter().flat_map(|folder| files(folder, ".md")));
    pages
}

/// Returns the lines of a page outside of code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

/// Returns the anchors of the headings of a page, as GitHub and mdBook name them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for line in prose(text).filter(|line| line.starts_with('#')) {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let anchor: String = title
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let mut unique = anchor.clone();
        for count in 1.. {
            if anchors.insert(unique) {
                break;
            }
            unique = format!("{anchor}-{count}");
        }
    }
    anchors
}

/// Returns the targets of the links and pictures in a page.
fn links(text: &str) -> Vec<String> {
    let text: Vec<&str> = prose(text).collect();
    let text = text.join("\n");
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains(char::is_whitespace)).map(str::to_owned).collect()
}

/// Resolves `.` and `..` without looking at the disk.
fn normal(path: &Path) -> PathBuf {
    let mut resolved = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                assert!(resolved.pop(), "{} is outside of the repository", path.display());
            }
            Component::CurDir => {}
            part => resolved.push(part),
        }
    }
    resolved
}

#[test]
fn links_and_anchors_lead_somewhere() {
    let mut checked = 0;
    let mut broken = Vec::new();
    for page in pages() {
        for link in links(&read(&page)) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if path.is_empty() { page.clone() } else { normal(&page.parent().unwrap().join(path)) };
            let exists = Path::new(ROOT).join(&target).exists();
            let is_page = target.extension().is_some_and(|ending| ending == "md");
            if !exists || (!anchor.is_empty() && is_page && !anchors(&read(&target)).contains(anchor)) {
                broken.push(format!("{}: {link}", page.display()));
            }
            checked += 1;
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(checked > 300, "only {checked} links were found");
}

/// `UPDATE_DOCS=1` adds missing pages after the last page of their folder.
#[test]
fn the_summary_lists_every_page_once() {
    let mut summary = read("docs/SUMMARY.md");
    let pages = files("docs", ".md");
    let pages: Vec<&str> = pages.iter().map(|page| page.strip_prefix("docs").unwrap().to_str().unwrap()).collect();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        for page in pages.iter().filter(|page| **page != "SUMMARY.md") {
            if !summary.contains(&format!("({page})")) {
                summary = with_page(&summary, page);
            }
        }
        fs::write(Path::new(ROOT).join("docs/SUMMARY.md"), &summary).unwrap();
    }
    let listed = links(&summary);
    let unique: BTreeSet<&str> = listed.iter().map(String::as_str).collect();
    assert_eq!(unique.len(), listed.len(), "a page is listed twice");
    let missing: Vec<&&str> = pages.iter().filter(|page| **page != "SUMMARY.md" && !unique.contains(**page)).collect();
    assert!(missing.is_empty(), "run make docs: docs/SUMMARY.md lacks {missing:?}");
}

/// Adds a page to the summary, in the form of the last page of its folder.
fn with_page(summary: &str, page: &str) -> String {
    let folder = page.rsplit_once('/').map_or("(", |(folder, _)| folder);
    let lines: Vec<&str> = summary.lines().collect();
    let last = lines.iter().rposition(|line| line.contains(folder) && line.trim_start().starts_with("- ")).unwrap();
    let indent = lines[last].split('-').next().unwrap();
    let text = read(Path::new("docs").join(page));
    let title = text.lines().find_map(|line| line.strip_prefix("# ")).unwrap();
    let mut lines: Vec<String> = lines.into_iter().map(str::to_owned).collect();
    lines.insert(last + 1, format!("{indent}- [{title}]({page})"));
    lines.join("\n") + "\n"
}

/// Returns the sources of the core and the operator without their tests.
fn sources() -> Vec<String> {
    let paths = ["crates/core/src", "crates/operator/src"].into_iter().flat_map(|folder| files(folder, ".rs"));
    let paths = paths.filter(|path| !path.to_str().unwrap().contains("tests"));
    paths.map(|path| read(path).split("#[cfg(test)]\nmod tests").next().unwrap().to_owned()).collect()
}

/// Returns the first string literal after each occurrence of a call.
fn literals_after<'a>(source: &'a str, call: &'a str) -> impl Iterator<Item = &'a str> {
    source.split(call).skip(1).filter_map(|rest| rest.split('"').nth(1))
}

/// Returns the code spans of a page.
fn spans(text: &str) -> BTreeSet<String> {
    let text: Vec<&str> = prose(text).collect();
    text.join("\n").split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn the_reference_lists_every_metric() {
    let listed: BTreeSet<String> = spans(&read("docs/reference/metrics.md"))
        .iter()
        .map(|span| span.split('{').next().unwrap().to_owned())
        .collect();
    let registered: BTreeSet<String> = sources()
        .iter()
        .flat_map(|source| literals_after(source, "register(").map(str::to_owned).collect::<Vec<_>>())
        .filter(|name| name.contains('_') && name.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
        .collect();
    assert!(registered.len() > 30, "only {} metrics were found", registered.len());
    let spellings = |name: &String| [name.clone(), format!("{name}_total"), format!("{name}_info")];
    let missing: Vec<&String> =
        registered.iter().filter(|name| !spellings(name).iter().any(|s| listed.contains(s))).collect();
    assert!(missing.is_empty(), "not in docs/reference/metrics.md: {missing:?}");
    let known: BTreeSet<String> = registered.iter().flat_map(spellings).collect();
    let stale: Vec<&String> =
        listed.iter().filter(|name| name.starts_with("perennial_") && !known.contains(*name)).collect();
    assert!(stale.is_empty(), "metrics that do not exist: {stale:?}");
}

/// Returns the first literal after a call that looks like the reason of an Event.
fn reasons_after<'a>(source: &'a str, call: &'a str) -> impl Iterator<Item = &'a str> {
    source
        .split(call)
        .skip(1)
        .filter_map(|rest| rest.split('"').skip(1).step_by(2).take(2).find(|text| is_reason(text)))
}

/// Returns whether a text looks like the reason of an Event.
fn is_reason(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_uppercase())
        && text.len() > 4
        && text.chars().all(|c| c.is_ascii_alphabetic())
        && text.contains(|c: char| c.is_ascii_lowercase())
}

#[test]
fn the_reference_lists_every_event() {
    let listed = spans(&read("docs/reference/events.md"));
    let calls = [
        "events.occurred(",
        "events.lasts(",
        "WorkloadEvent::normal(",
        "WorkloadEvent::warning(",
        "WorkloadEvent::lasting_warning(",
        "WorkloadEvent::lasting_note(",
    ];
    let sources = sources();
    let called = sources.iter().flat_map(|source| calls.iter().flat_map(|call| reasons_after(source, call)));
    // One Event for both classes has a reason for each.
    let by_class =
        sources.iter().filter_map(|source| source.split("fn reasons(class: Class)").nth(1)?.split("\n}").next());
    let by_class = by_class.flat_map(|body| body.split('"').skip(1).step_by(2)).filter(|text| is_reason(text));
    let sent: BTreeSet<&str> = called.chain(by_class).collect();
    assert!(sent.len() > 20, "only {sent:?} were found");
    let missing: Vec<&&str> = sent.iter().filter(|reason| !listed.contains(**reason)).collect();
    assert!(missing.is_empty(), "not in docs/reference/events.md: {missing:?}");
    let rows = read("docs/reference/events.md");
    let rows = rows.lines().filter(|line| line.starts_with("| `"));
    let first_cells: String = rows.filter_map(|row| row.split(" | ").next()).collect();
    let stale: Vec<String> = spans(&first_cells).into_iter().filter(|reason| !sent.contains(&reason[..])).collect();
    assert!(stale.is_empty(), "reasons that are not sent: {stale:?}");
}

#[test]
fn the_reference_lists_every_annotation() {
    let page = read("docs/reference/annotations.md");
    let sources = sources();
    let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    let own = |text: &&str| text.strip_prefix("perennial.dev/").is_some_and(is_name);
    let constants: BTreeSet<String> =
        sources.iter().flat_map(|source| literals_after(source, "&str = ").filter(own)).map(str::to_owned).collect();
    let spec = read("crates/core/src/placement/spec.rs");
    let spec = spec.split("#[cfg(test)]").next().unwrap().to_owned();
    let requested = literals_after(&spec, "find(").chain(literals_after(&spec, "read("));
    let requested = requested.filter(|name| *name != "enabled" && is_name(name));
    let keys: BTreeSet<String> = requested.map(|name| format!("perennial.dev/{name}")).chain(constants).collect();
    assert!(keys.len() > 20, "only {keys:?} were found");
    let missing: Vec<&String> = keys.iter().filter(|key| !page.contains(&format!("`{key}"))).collect();
    assert!(missing.is_empty(), "not in docs/reference/annotations.md: {missing:?}");
}

#[test]
fn the_reference_lists_every_field_of_a_keep_policy() {
    let page = read("docs/reference/keep-policy.md");
    let crd = read("deploy/crds.yaml");
    for part in ["spec", "status"] {
        // Names of the fields are indented by 14 spaces below `spec:` and `status:`.
        let below = crd.split(&format!("\n          {part}:\n")).nth(1).unwrap();
        let below = below.lines().take_while(|line| line.starts_with("           ") || line.is_empty());
        let names = below.filter_map(|line| line.strip_prefix("              ")?.strip_suffix(':'));
        let names: BTreeSet<&str> = names.filter(|name| name.chars().all(|c| c.is_ascii_alphabetic())).collect();
        assert!(names.len() > 3, "{part}: {names:?}");
        let missing: Vec<&&str> = names.iter().filter(|name| !page.contains(&format!("\n| `{name}` |"))).collect();
        assert!(missing.is_empty(), "{part}: not in docs/reference/keep-policy.md: {missing:?}");
    }
}

/// Returns the settings and chart values that a page names in code spans, such as `keeper.keep`.
fn named_settings(text: &str) -> BTreeSet<String> {
    let sections =
        ["controller", "keeper", "records", "placement", "nodeLabels", "webhook", "metrics", "dashboard", "logging"];
    let first_word = |span: &String| {
        let end = span.find(|c: char| !c.is_ascii_alphanumeric() && c != '.').unwrap_or(span.len());
        span.get(..end).unwrap_or_default().trim_end_matches('.').to_owned()
    };
    let is_setting = |word: &String| {
        let is_key = |key: &str| !["rs", "kubernetes.io", "perennial.dev"].contains(&key);
        word.split_once('.').is_some_and(|(section, key)| sections.contains(&section) && is_key(key))
    };
    spans(text).iter().map(first_word).filter(is_setting).collect()
}

#[test]
fn every_setting_that_a_page_names_exists() {
    let reference = read("docs/reference/configuration.md");
    let keys: BTreeSet<&str> =
        reference.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    assert!(keys.contains("keeper.keep"), "{keys:?}");
    let known = |word: &str| {
        keys.contains(word) || keys.iter().any(|key| key.strip_prefix(word).is_some_and(|rest| rest.starts_with('.')))
    };
    let mut unknown = BTreeMap::new();
    let mut named = 0;
    for page in pages() {
        // The changelog and the decisions describe other times.
        let path = page.to_str().unwrap();
        if path.contains("decisions/") || path == "CHANGELOG.md" {
            continue;
        }
        for word in named_settings(&read(&page)) {
            named += 1;
            if !known(&word) {
                unknown.insert(word, path.to_owned());
            }
        }
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
    assert!(named > 100, "only {named} settings were found");
}

/// Returns whether a code span of a page is the path of a file or folder of this repository.
fn is_path(span: &str) -> bool {
    let ends = [".rs", ".js", ".py", ".sh", ".yaml", ".json", ".md", ".hcl"];
    let plain = span.chars().all(|c| c.is_ascii_alphanumeric() || "_-./*".contains(c));
    let domain = span.split('/').next().is_some_and(|first| first.contains('.') && span.contains('/'));
    plain
        && !span.starts_with('/')
        && !domain
        && (span.contains('/') || ends.iter().any(|end| span.len() > end.len() && span.ends_with(end)))
}

/// Returns whether a path exists; its last part may begin with `*`.
fn exists(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match name.strip_prefix('*') {
        None => path.exists(),
        Some(end) => {
            let entries = path.parent().and_then(|parent| fs::read_dir(parent).ok());
            entries.into_iter().flatten().flatten().any(|entry| entry.file_name().to_string_lossy().ends_with(end))
        }
    }
}

/// A path is relative to the repository, `crates` or the sources of the operator. The paragraph of a
/// component begins with its folders, to which its files are relative.
#[test]
fn every_path_in_the_architecture_exists() {
    let page = read("docs/explain/architecture.md");
    let prose: Vec<&str> = prose(&page).collect();
    let root = Path::new(ROOT);
    let bases = [root.to_owned(), root.join("crates"), root.join("crates/operator/src")];
    let (mut checked, mut missing) = (0, Vec::new());
    for paragraph in prose.join("\n").split("\n\n") {
        let component = paragraph.strip_prefix("**").and_then(|rest| rest.split_once("** (")?.1.split(')').next());
        let folders = component.unwrap_or_default().split('`').skip(1).step_by(2).filter(|span| span.contains('/'));
        let folders: Vec<PathBuf> = folders.map(|folder| root.join("crates").join(folder)).collect();
        for span in paragraph.split('`').skip(1).step_by(2).filter(|span| is_path(span)) {
            checked += 1;
            let relative = span.contains('/') || component.is_none();
            let general = bases.iter().filter(|_| relative);
            if !folders.iter().chain(general).any(|base| exists(&base.join(span))) {
                missing.push(span.to_owned());
            }
        }
    }
    assert!(missing.is_empty(), "docs/explain/architecture.md: {missing:?}");
    assert!(checked > 80, "only {checked} paths were found");
}

/// Returns the text between two others.
fn between<'a>(text: &'a str, begin: &str, end: &str) -> &'a str {
    text.split_once(begin).and_then(|(_, rest)| rest.split_once(end)).unwrap_or_else(|| panic!("no {begin}")).0
}

/// Chart, `check` and the page name one oldest version. The page lists the versions of the workflow,
/// and all versions that the tests can use.
#[test]
fn supported_versions_agree() {
    let page = read("docs/reference/support.md");
    let oldest = between(&page, "accepted by the chart | 1.", " and newer").to_owned();
    let chart = read("charts/perennial/Chart.yaml");
    assert_eq!(between(&chart, "kubeVersion: \">=1.", ".0-0"), oldest);
    assert_eq!(between(&read("crates/operator/src/cli/check.rs"), "OLDEST_MINOR: u32 = ", ";"), oldest);

    let modules = fs::read_dir(Path::new(ROOT).join("crates/localplane/modules")).unwrap();
    let modules = modules.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let tested: BTreeSet<String> =
        modules.filter_map(|name| Some(name.strip_prefix("kubernetes-")?.to_owned())).collect();
    let workflow = read(".github/workflows/test.yml");
    let matrix =
        between(&workflow, "kubernetes: [", "]").split(", ").map(|version| version.trim_matches('"').to_owned());
    let listed = |row: &str| -> BTreeSet<String> {
        between(&page, row, " |").replace(" and ", ", ").split(", ").map(str::to_owned).collect()
    };
    assert_eq!(matrix.collect::<BTreeSet<_>>(), listed("in the workflow of a pull request | "));
    let mut all = listed("`make test MATRIX=1` | ");
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<BTreeSet<_>>();
    let script = read("packaging/matrix.sh");
    assert_eq!(words(&format!("1{}", between(&script, "versions=(1", ")"))), all);
    assert_eq!(words(&between(&workflow, "older: [", "]").replace(['"', ','], " ")), all);
    all.extend(listed("all tests: `make test` | ").iter().filter_map(|text| text.split(';').next()).map(str::to_owned));
    assert_eq!(all, tested);
}

/// The README lists every folder of the repository, and every crate and tool.
#[test]
fn the_readme_lists_every_folder() {
    let readme = read("README.md");
    let section = between(&readme, "## Where things are\n", "\n## ");
    let mut folders = Vec::new();
    for parent in ["", "crates", "tools", "docs"] {
        for entry in fs::read_dir(Path::new(ROOT).join(parent)).unwrap().flatten() {
            let path = Path::new(parent).join(entry.file_name()).to_str().unwrap().to_owned();
            // Build output and hidden folders of tools are not part of the sources.
            let ours = !path.starts_with('.') || [".ci", ".github"].contains(&&path[..]);
            if entry.file_type().unwrap().is_dir() && ours && path != "target" {
                folders.push(path);
            }
        }
    }
    // The parent of listed folders needs no line.
    let listed = |path: &String| section.contains(&format!("`{path}`")) || section.contains(&format!("`{path}/"));
    let missing: Vec<&String> = folders.iter().filter(|path| !listed(path)).collect();
    assert!(missing.is_empty(), "README.md, Where things are: {missing:?}");
    assert!(folders.len() > 20, "{folders:?}");
}
