//! Asserts the counts of the benchmark: requests and losses. Durations are not asserted.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failure here fails the test")]

use std::{fs, process::Command};

use serde_json::Value;

#[test]
fn an_unchanged_node_costs_one_write_or_none_and_nothing_is_lost_or_resurrected() {
    let folder = std::env::temp_dir().join(format!("perennial-bench-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let bench = Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(["counts", "mass", "last-second"])
        .current_dir(&folder)
        .output()
        .unwrap();
    assert!(bench.status.success(), "{}", String::from_utf8_lossy(&bench.stderr));
    let report: Value = serde_json::from_slice(&fs::read(folder.join(".bench/report.json")).unwrap()).unwrap();
    let text = fs::read_to_string(folder.join(".bench/report.md")).unwrap();
    fs::remove_dir_all(&folder).unwrap();

    for (webhooks, writes) in [("off", 200), ("on", 0)] {
        let back = &report[format!("mass/200/Perennial, webhooks {webhooks}")];
        assert_eq!((&back["wrong"], &back["resurrected"]), (&0.into(), &0.into()), "{back:#}");
        assert_eq!((&back["nodeWrites"], &back["storeWrites"]), (&writes.into(), &0.into()), "{back:#}");
        // Captured when new and when changed, then restored: two, three and two requests, and one
        // more for each admission.
        assert!(back["requestsPerLife"].as_f64().unwrap() <= 8.0, "{back:#}");
    }
    assert_eq!(report["mass/200/Perennial, webhooks on"]["inCreate"], 200);
    assert_eq!(report["lastSecond/Perennial, webhooks on"], 0);
    let cost = &report["lastSecond/Perennial, webhooks on/cost"];
    assert!(cost["writesPerLife"].as_f64().unwrap() <= 3.5, "{cost:#}");
    assert!(cost["readsPerLife"].as_f64().unwrap() <= 9.0, "{cost:#}");
    assert!(cost["noOpFloor"].as_f64().is_some() && back_has_no_op_floor(&report), "{report:#}");
    assert!(text.contains("## Goals") && text.contains("![200 nodes return"), "{text}");
}

fn back_has_no_op_floor(report: &Value) -> bool {
    report["mass/200/Perennial, webhooks on/floor"]["noOpSeconds"].as_array().is_some_and(|times| times.len() == 2)
}
