//! The parts of a release: the chart with its image, and the workflows that publish it.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use perennial_harness::{CommandOutput, Helm, Registry, actionlint};
use rstest::rstest;
use serde_json::Value;

use crate::{lifecycle::Stage, packages::Folder};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn read(path: &str) -> String {
    fs::read_to_string(format!("{ROOT}/{path}")).unwrap()
}

fn output(command: &mut Command) -> CommandOutput {
    CommandOutput::of(command.output().unwrap())
}

/// Runs the script of the release with this helm on the PATH.
fn package(helm: Helm, version: &str, image: &str, folder: &Path) -> CommandOutput {
    let mut path = OsString::from(helm.program().parent().unwrap());
    path.push(":/usr/bin:/bin");
    output(
        Command::new(format!("{ROOT}/packaging/chart.sh"))
            .args([version, image])
            .arg(folder)
            .env("PATH", path)
            .env("HOME", folder),
    )
}

fn helm(helm: Helm, folder: &Path, words: &[&str]) -> CommandOutput {
    output(Command::new(helm.program()).args(words).env("HOME", folder))
}

#[rstest]
fn the_chart_of_a_release_names_the_image_of_the_release(#[values(Helm::V3, Helm::V4)] version: Helm) {
    let folder = Folder::new(&format!("chart-{version:?}"));
    let image = "registry.example.com:5000/tools/perennial";

    let archive = package(version, "v1.2.3", image, &folder.0).expect_success();

    let archive = archive.trim();
    assert!(archive.ends_with("/perennial-1.2.3.tgz"), "{archive}");
    let words = ["template", "perennial", archive, "--kube-version", "1.36.0"];
    let rendered = helm(version, &folder.0, &words).expect_success();
    let images: Vec<&str> = rendered.lines().filter_map(|line| line.trim().strip_prefix("image: ")).collect();
    assert_eq!(images, [format!("{image}:v1.2.3"), format!("{image}:v1.2.3"), format!("{image}:v1.2.3")]);
    // The workflow uses this script and nothing else.
    let workflow = read(".github/workflows/release.yml");
    assert!(workflow.contains(r#"packaging/chart.sh "$VERSION" "$IMAGE" target/package"#), "{workflow}");
    assert!(!workflow.contains("helm package"), "{workflow}");
    assert!(workflow.contains("perennial.tags=${{ env.IMAGE }}:${{ github.ref_name }}"), "{workflow}");
}

#[test]
fn an_image_without_a_registry_is_not_released() {
    let folder = Folder::new("chart-local");
    let message = package(Helm::V4, "v1.2.3", "perennial", &folder.0).expect_failure();

    assert!(message.contains("names no registry"), "{message}");
}

/// Artifact Hub shows the chart from its metadata; lists in annotations are YAML in a string.
#[test]
fn the_metadata_of_the_chart_is_true() {
    let chart: Value = serde_saphyr::from_str(&read("charts/perennial/Chart.yaml")).unwrap();
    let repository = "https://github.com/perennial-dev/perennial";
    let list = |name: &str| -> Vec<Value> {
        let text = chart["annotations"][format!("artifacthub.io/{name}")].as_str().unwrap();
        serde_saphyr::from_str(text).unwrap()
    };
    let exists = |path: &str| Path::new(ROOT).join(path).is_file();

    let icon = chart["icon"].as_str().unwrap();
    let icon = icon.strip_prefix("https://raw.githubusercontent.com/perennial-dev/perennial/main/").unwrap();
    assert!(exists(icon) && read(icon).starts_with("<svg"), "{icon}");
    for link in list("links") {
        let path = link["url"].as_str().unwrap().strip_prefix(&format!("{repository}/blob/main/")).unwrap();
        assert!(exists(path), "{link}");
    }
    let crd: Value = serde_saphyr::from_str(&read("charts/perennial/files/crds.yaml")).unwrap();
    let listed = list("crds");
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0]["name"], crd["metadata"]["name"]);
    assert_eq!(listed[0]["kind"], crd["spec"]["names"]["kind"]);
    assert_eq!(listed[0]["version"], crd["spec"]["versions"][0]["name"]);
    let fields = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    for example in list("crdsExamples") {
        assert_eq!(example["kind"], listed[0]["kind"]);
        let unknown: Vec<&String> =
            example["spec"].as_object().unwrap().keys().filter(|key| fields[key.as_str()].is_null()).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
    assert_eq!(chart["home"], repository);
}

/// Returns the only line of a page with this beginning.
fn line(page: &str, beginning: &str) -> String {
    let text = read(page);
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(beginning)).collect();
    assert_eq!(lines.len(), 1, "{page}: {lines:?}");
    lines[0].to_owned()
}

/// The line of the README installs a chart that the release has pushed.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn the_chart_is_installed_from_a_registry() {
    let folder = Folder::new("registry");
    let Some(registry) = Registry::start(&folder.0).await else { return };
    let address = &registry.address;
    let version = format!("v{}", env!("CARGO_PKG_VERSION"));
    let archive = package(Helm::V4, &version, &format!("{address}/perennial"), &folder.0).expect_success();
    let charts = format!("oci://{address}/charts");
    helm(Helm::V4, &folder.0, &["push", archive.trim(), &charts, "--plain-http"]).expect_success();
    let documented = line("README.md", "helm install perennial oci://");
    assert_eq!(documented, line("docs/start/README.md", "helm install perennial oci://"));
    let documented = documented.split(" #").next().unwrap().replace("registry.example.com", address);
    let words: Vec<&str> = documented.split_whitespace().skip(1).collect();

    let stage = Stage::new(Helm::V4).await;
    stage.cluster.node("n1").create().await;
    let more = ["--plain-http", "--set", "replicas=1", "--wait", "--timeout", "3m"];
    let installed = Helm::V4.on(&stage.cluster, &[&words[..], &more].concat()).await;

    let notes = installed.expect_success();
    assert!(notes.contains("kubectl label node NODE") && !notes.contains("NO REGISTRY HAS"), "{notes}");
    let image = "get deployment perennial -n perennial-system -o jsonpath={.spec.template.spec.containers[0].image}";
    assert_eq!(stage.cluster.kubectl(image), format!("{address}/perennial:{version}"));
    stage.a_label_survives("n1").await;
}

#[test]
fn workflows_pass_actionlint() {
    let Some(program) = actionlint() else { return };
    let workflows = fs::read_dir(format!("{ROOT}/.github/workflows")).unwrap();
    let workflows: Vec<PathBuf> = workflows.map(|entry| entry.unwrap().path()).collect();
    assert!(workflows.len() > 1, "{workflows:?}");
    // Without shellcheck and pyflakes, whose versions differ between machines.
    let checked = output(Command::new(program).args(["-shellcheck=", "-pyflakes="]).args(workflows));

    assert!(checked.success, "{}", checked.stdout);
}
