//! The page of the threat model names tests that exist, and every test beside this one is named there.

use std::{collections::BTreeSet, fs, path::Path};

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
fn the_threat_model_names_every_attack_that_is_tried() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/security.md");
    let text = fs::read_to_string(page).unwrap();
    let named: BTreeSet<&str> = text.split('`').skip(1).step_by(2).collect();
    let ours = tests_in("security");

    assert!(ours.len() > 10, "only {} tests were found", ours.len());
    let this = "the_threat_model_names_every_attack_that_is_tried";
    let left_out: Vec<_> = ours.iter().filter(|name| *name != this && !named.contains(name.as_str())).collect();
    assert!(left_out.is_empty(), "not named on the page: {left_out:?}");
    let looks_like_one = |name: &&&str| {
        name.matches('_').count() > 3 && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    let missing: Vec<_> = named.iter().filter(looks_like_one).filter(|name| !ours.contains(**name)).collect();
    assert!(missing.is_empty(), "named, but not there: {missing:?}");
    for folder in ["guarantees", "install"] {
        let there = tests_in(folder);
        let theirs = named.iter().filter_map(|name| name.strip_prefix(&format!("{folder}::")[..]));
        let missing: Vec<_> = theirs.filter(|name| !there.contains(*name)).collect();
        assert!(missing.is_empty(), "named, but not in {folder}: {missing:?}");
    }
}
