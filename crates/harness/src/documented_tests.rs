//! Checks the documentation pages that name tests.

use std::{collections::BTreeSet, fs, path::Path};

/// Asserts that a page names every test of a folder and no test that does not exist. `name` refers
/// to this folder, `folder::name` to another one.
///
/// `this` is the calling test. The folder must contain more than `at_least` tests, so that a folder
/// that was not found does not pass.
pub fn assert_page_lists_tests(page: &str, folder: &str, others: &[&str], this: &str, at_least: usize) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let text = fs::read_to_string(path).expect("a page of the docs");
    let named: BTreeSet<&str> = text.split('`').skip(1).step_by(2).collect();
    let ours = tests_in(folder);

    assert!(ours.len() > at_least, "only {} tests were found", ours.len());
    let left_out: Vec<_> = ours.iter().filter(|name| *name != this && !named.contains(name.as_str())).collect();
    assert!(left_out.is_empty(), "not named on the page: {left_out:?}");
    // Test names have many words. Other code spans have few, except names of metrics.
    let looks_like_one = |name: &&&str| {
        name.matches('_').count() > 3
            && !name.starts_with("perennial_")
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    let missing: Vec<_> = named.iter().filter(looks_like_one).filter(|name| !ours.contains(**name)).collect();
    assert!(missing.is_empty(), "named, but not there: {missing:?}");
    for folder in others {
        let there = tests_in(folder);
        let theirs = named.iter().filter_map(|name| name.strip_prefix(&format!("{folder}::")[..]));
        let missing: Vec<_> = theirs.filter(|name| !there.contains(*name)).collect();
        assert!(missing.is_empty(), "named, but not in {folder}: {missing:?}");
    }
}

/// Returns the names of all tests in a folder and its subfolders.
fn tests_in(folder: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    collect_tests(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/tests").join(folder), &mut found);
    found
}

fn collect_tests(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder of tests") {
        let path = entry.expect("a file of tests").path();
        if path.is_dir() {
            collect_tests(&path, found);
            continue;
        }
        let text = fs::read_to_string(path).expect("a file of tests");
        let mut marked = false;
        for line in text.lines() {
            marked |= line.starts_with("#[tokio::test") || line == "#[test]";
            let name = line.strip_prefix("async fn ").or_else(|| line.strip_prefix("fn "));
            if let Some(name) = name.filter(|_| std::mem::take(&mut marked)) {
                found.insert(name.split('(').next().unwrap_or_default().to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_found_and_helpers_are_not() {
        let found = tests_in("cluster");
        assert!(found.contains("all_nodes_deleted_and_recreated_at_once_come_back_complete"), "{found:?}");
        assert!(!found.contains("user_without"), "{found:?}");
    }
}
