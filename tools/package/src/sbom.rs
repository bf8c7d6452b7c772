//! SBOM: a CycloneDX document of everything that is linked into the program, from `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::{image::digest, output};

/// Runs `cargo metadata` for a package of this workspace as it is shipped for a target: with these
/// features only, and without features that other packages of the workspace turn on for tests.
pub fn metadata(cargo: &str, package: &str, target: &str, features: &str) -> anyhow::Result<Value> {
    let features: Vec<String> = features
        .split([',', ' '])
        .filter(|feature| !feature.is_empty())
        .map(|feature| format!("{package}/{feature}"))
        .collect();
    let features = features.join(",");
    let words = ["metadata", "--format-version=1", "--locked", "--no-default-features", "--filter-platform", target];
    let mut words = words.to_vec();
    if !features.is_empty() {
        words.extend(["--features", &features]);
    }
    Ok(serde_json::from_slice(&output(cargo, &words)?)?)
}

/// Builds the document for one package from the output of `cargo metadata`. It contains only linked
/// crates, no build or test dependencies.
pub fn sbom(metadata: &Value, package: &str) -> anyhow::Result<Value> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let id = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages: BTreeMap<String, Value> =
        list(&metadata["packages"]).into_iter().map(|package| (id(&package["id"]), package)).collect();
    let nodes: BTreeMap<String, Value> =
        list(&metadata["resolve"]["nodes"]).into_iter().map(|node| (id(&node["id"]), node)).collect();
    let root = packages.values().find(|known| known["name"] == package && known["source"].is_null());
    let root = root.with_context(|| format!("package {package} is not in the output of cargo metadata"))?;

    let mut seen = BTreeSet::new();
    let mut waiting = vec![id(&root["id"])];
    let mut dependencies = Vec::new();
    while let Some(next) = waiting.pop() {
        if !seen.insert(next.clone()) {
            continue;
        }
        let linked = |dependency: &Value| list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
        let node = nodes.get(&next).cloned().unwrap_or_default();
        let on: Vec<String> = list(&node["deps"]).iter().filter(|dep| linked(dep)).map(|dep| id(&dep["pkg"])).collect();
        dependencies.push((next, on.clone()));
        waiting.extend(on);
    }
    dependencies.sort();

    let url = |id: &str| {
        let package = packages.get(id).cloned().unwrap_or_default();
        format!("pkg:cargo/{}@{}", package["name"].as_str().unwrap_or("?"), package["version"].as_str().unwrap_or("?"))
    };
    let component = |id: &String| {
        let package = packages.get(id).cloned().unwrap_or_default();
        let mut component = json!({
            "type": "library",
            "bom-ref": url(id),
            "name": package["name"],
            "version": package["version"],
            "purl": url(id),
        });
        if let Some(license) = package["license"].as_str() {
            component["licenses"] = json!([{ "expression": license.replace('/', " OR ") }]);
        }
        component
    };
    let components: Vec<Value> = seen.iter().filter(|id| **id != root["id"]).map(component).collect();
    let dependencies: Vec<Value> = dependencies
        .iter()
        .map(|(id, on)| {
            let on: BTreeSet<String> = on.iter().map(|id| url(id)).collect();
            json!({ "ref": url(id), "dependsOn": on })
        })
        .collect();
    let mut main = component(&id(&root["id"]));
    main["type"] = json!("application");
    let mut document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": main },
        "components": components,
        "dependencies": dependencies,
    });
    // Derived from the content: equal documents have equal serial numbers.
    let hex = digest(&serde_json::to_vec(&document)?).replace("sha256:", "");
    let parts = [&hex[..8], &hex[8..12], &format!("5{}", &hex[13..16]), &format!("8{}", &hex[17..20]), &hex[20..32]];
    document["serialNumber"] = json!(format!("urn:uuid:{}", parts.join("-")));
    Ok(document)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_of_tests_are_not_listed() {
        let names = |features: &str| -> BTreeSet<String> {
            let metadata = metadata(env!("CARGO"), "perennial", "x86_64-unknown-linux-musl", features).unwrap();
            let document = sbom(&metadata, "perennial").unwrap();
            let list = document["components"].as_array().unwrap();
            list.iter().map(|component| component["name"].as_str().unwrap().to_owned()).collect()
        };
        let (shipped, traced) = (names(""), names("otlp"));

        assert!(shipped.contains("kube-client") && shipped.len() > 100, "{shipped:?}");
        for only_traced in ["opentelemetry-otlp", "tracing-opentelemetry", "prost"] {
            assert!(traced.contains(only_traced) && !shipped.contains(only_traced), "{only_traced}");
        }
        assert!(!shipped.contains("localplane") && !shipped.contains("proptest"));
    }

    #[test]
    fn only_linked_crates_are_listed() {
        let package = |name: &str, source: Value| json!({ "id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0", "source": source });
        let on = |name: &str, kind: Value| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let metadata = json!({
            "packages": [package("perennial", Value::Null), package("linked", json!("r")), package("deeper", json!("r")),
                package("tester", json!("r")), package("builder", json!("r"))],
            "resolve": { "nodes": [
                { "id": "perennial", "deps": [on("linked", Value::Null), on("tester", json!("dev")), on("builder", json!("build"))] },
                { "id": "linked", "deps": [on("deeper", Value::Null)] },
            ]},
        });

        let document = sbom(&metadata, "perennial").unwrap();

        let names: Vec<&str> =
            document["components"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["deeper", "linked"]);
        assert_eq!(document["components"][0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(document["metadata"]["component"]["purl"], "pkg:cargo/perennial@1.0.0");
        assert!(sbom(&metadata, "nobody").is_err());
    }
}
