//! The guarantees page lists every test of this folder and no test that does not exist.

use perennial_harness::assert_page_lists_tests;

#[test]
fn the_page_lists_exactly_the_existing_tests() {
    let this = "the_page_lists_exactly_the_existing_tests";
    assert_page_lists_tests("explain/guarantees.md", "guarantees", &["cluster"], this, 50);
}
