//! The page that states the guarantees names tests that exist, and every test beside it is named there.

use perennial_harness::assert_page_lists_tests;

#[test]
fn the_page_names_tests_that_exist_and_leaves_none_out() {
    let this = "the_page_names_tests_that_exist_and_leaves_none_out";
    assert_page_lists_tests("guarantees.md", "guarantees", &["cluster"], this, 50);
}
