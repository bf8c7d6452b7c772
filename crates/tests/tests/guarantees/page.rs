//! The page that states the guarantees names tests that exist, and every test beside it is named there.

use std::{collections::BTreeSet, fs, path::Path};

/// The names of all tests in a folder of test files.
fn tests_in(folder: &str) -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        let mut marked = false;
        for line in text.lines() {
            marked |= line.starts_with("#[tokio::test") || line == "#[test]";
            let name = line.strip_prefix("async fn ").or_else(|| line.strip_prefix("fn "));
            if let Some(name) = name.filter(|_| std::mem::take(&mut marked)) {
                found.insert(name.split('(').next().unwrap_or_default().to_owned());
            }
        }
    }
    found
}

#[test]
fn the_page_names_tests_that_exist_and_leaves_none_out() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guarantees.md");
    let text = fs::read_to_string(page).unwrap();
    let named: BTreeSet<&str> = text.split('`').skip(1).step_by(2).collect();
    let (ours, cluster) = (tests_in("guarantees"), tests_in("cluster"));

    // A name of a test has many words; others in backquotes have few.
    let looks_like_one = |name: &&&str| {
        name.matches('_').count() > 3 && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    let missing: Vec<_> = named.iter().filter(looks_like_one).filter(|name| !ours.contains(**name)).collect();
    assert!(missing.is_empty(), "named, but not there: {missing:?}");
    let of_cluster = named.iter().filter_map(|name| name.strip_prefix("cluster::"));
    let missing: Vec<_> = of_cluster.filter(|name| !cluster.contains(*name)).collect();
    assert!(missing.is_empty(), "named, but not there: {missing:?}");
    assert!(ours.len() > 50, "only {} tests were found", ours.len());
    let this = "the_page_names_tests_that_exist_and_leaves_none_out";
    let left_out: Vec<_> = ours.iter().filter(|name| *name != this && !named.contains(name.as_str())).collect();
    assert!(left_out.is_empty(), "not named on the page: {left_out:?}");
}
