//! The threat model page lists every test of this folder and no test that does not exist.

use perennial_harness::assert_page_lists_tests;

#[test]
fn the_threat_model_names_every_attack_that_is_tried() {
    let this = "the_threat_model_names_every_attack_that_is_tried";
    assert_page_lists_tests(
        "explain/security.md",
        "security",
        &["attacks", "faults", "guarantees", "install"],
        this,
        10,
    );
}
