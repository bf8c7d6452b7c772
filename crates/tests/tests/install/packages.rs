//! The image and the kubectl plugin, built from a stand-in program and tested like a user would.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use perennial_core::placement::{Class, node_labels::NodeLabels};
use perennial_harness::{krew, program_under_test, skip};
use perennial_package::image::{Build, PROGRAM, USER, image};
use serde_json::Value;

const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging");

/// Prints the expected output, but only as the user of the image and only without other files.
const STAND_IN: &str = r#"
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(int count, char **words) {
    if (getuid() != USER || getgid() != USER) { fprintf(stderr, "I am not who I should be\n"); return 9; }
    if (access("/", W_OK) == 0 || access("/bin/sh", F_OK) == 0) { fprintf(stderr, "this is not the image\n"); return 9; }
    if (count > 1 && !strcmp(words[1], "run")) { fprintf(stderr, "could not read the kubeconfig /nowhere\n"); return 1; }
    puts("a stand-in");
    return 0;
}
"#;

/// A folder that is removed at the end of the test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("perennial-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the operator without debug information.
pub(crate) fn stripped(folder: &Path) -> PathBuf {
    let (program, stripped) = (program_under_test(), folder.join("perennial"));
    let strip = Command::new("strip").arg("-o").arg(&stripped).arg(&program).status();
    if !strip.is_ok_and(|status| status.success()) {
        fs::copy(&program, &stripped).unwrap();
    }
    stripped
}

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Compiles a static program for this machine; `None` without a C compiler and a static libc.
fn stand_in(folder: &Path) -> Option<Vec<u8>> {
    let (source, program) = (folder.join("stand-in.c"), folder.join("stand-in"));
    fs::write(&source, STAND_IN).unwrap();
    let user = format!("-DUSER={USER}");
    let built = Command::new("cc").args(["-static", &user, "-o"]).arg(&program).arg(&source).output().ok()?;
    if built.status.success() { Some(fs::read(program).unwrap()) } else { None }
}

fn check(folder: &Path, bytes: &[u8], architecture: &str) -> Output {
    let file = folder.join("image.tar");
    fs::write(&file, bytes).unwrap();
    Command::new(format!("{PACKAGING}/check-image.sh")).arg(&file).arg(architecture).output().unwrap()
}

#[test]
fn an_image_is_unpacked_and_run_as_its_user_and_a_spoilt_one_is_not() {
    let folder = Folder::new("image");
    let root = fs::metadata("/proc/self").is_ok_and(|us| std::os::unix::fs::MetadataExt::uid(&us) == 0);
    let (true, Some(program)) = (root, stand_in(&folder.0)) else {
        skip("needs root, and a C compiler with a static libc", "at least one is missing");
        return;
    };
    let (here, there) = if cfg!(target_arch = "aarch64") { ("arm64", "amd64") } else { ("amd64", "arm64") };
    let build = |architecture: &str, program: &[u8]| Build {
        architecture: architecture.to_owned(),
        program: program.to_vec(),
        sbom: Some(b"{}".to_vec()),
        libraries: Vec::new(),
    };

    for builds in [vec![build(here, &program)], vec![build(there, &program), build(here, &program)]] {
        let bytes = image("perennial", "1.2.3", &builds).unwrap();
        let output = check(&folder.0, &bytes, here);
        assert!(output.status.success(), "{}", message(&output));
        assert!(message(&output).contains(&format!("user {USER}:{USER}, program /usr/bin/perennial, 4 files")));
        assert!(message(&output).contains(&format!("the image for {here} runs")));
    }

    // One byte of the program is changed.
    let mut bytes = image("perennial", "1.2.3", &[build(here, &program)]).unwrap();
    let at = bytes.windows(10).position(|window| window == b"a stand-in").unwrap();
    bytes[at] = b'A';
    let output = check(&folder.0, &bytes, here);
    assert!(!output.status.success() && message(&output).contains("digest mismatch"), "{}", message(&output));

    // A program with different output.
    let mut other = program.clone();
    let at = other.windows(8).position(|window| window == b"/nowhere").unwrap();
    other[at] = b'_';
    let output = check(&folder.0, &image("perennial", "1.2.3", &[build(here, &other)]).unwrap(), here);
    assert!(!output.status.success(), "{}", message(&output));
}

#[test]
fn skopeo_finds_the_image_by_its_version_for_one_architecture_and_for_two() {
    if Command::new("skopeo").arg("--version").output().is_err() {
        skip("needs skopeo", "it is not in PATH");
        return;
    }
    let folder = Folder::new("skopeo");
    // Headers of a static program.
    let mut program = vec![0; 120];
    program[..5].copy_from_slice(b"\x7fELF\x02");
    let build = |architecture: &str| Build {
        architecture: architecture.to_owned(),
        program: program.clone(),
        sbom: None,
        libraries: Vec::new(),
    };
    let full = "docker.io/library/perennial:1.2.3";
    for (builds, tags) in [
        (vec![build("amd64")], vec![("", "amd64")]),
        (vec![build("arm64"), build("amd64")], vec![("", "arm64"), ("-arm64", "arm64"), ("-amd64", "amd64")]),
    ] {
        let file = folder.0.join("image.tar");
        fs::write(&file, image("perennial", "1.2.3", &builds).unwrap()).unwrap();
        let file = file.display();
        let inspect = |reference: &str, architecture: &str| {
            let words = ["--override-os", "linux", "--override-arch", architecture, "inspect", reference];
            let output = Command::new("skopeo").args(words).output().unwrap();
            assert!(output.status.success(), "{reference}: {}", message(&output));
            let found: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(found["Architecture"], architecture, "{reference}");
        };

        for (suffix, architecture) in tags {
            inspect(&format!("docker-archive:{file}:{full}{suffix}"), architecture);
        }
        for each in &builds {
            inspect(&format!("oci-archive:{file}"), &each.architecture);
            inspect(&format!("oci-archive:{file}:1.2.3"), &each.architecture);
        }
    }
}

#[test]
fn krew_installs_the_plugin() {
    let Some(krew) = krew() else { return };
    let folder = Folder::new("krew");
    let program = stripped(&folder.0);
    let out = folder.0.join("out");
    let platforms = ["linux-amd64", "linux-arm64", "darwin-amd64", "darwin-arm64", "windows-amd64"];
    let builds = platforms.map(|platform| format!("{platform}={}", program.display()));
    let script = || Command::new(format!("{PACKAGING}/krew.sh"));
    let packed = script().arg("v1.2.3").arg(&out).args(&builds).output().unwrap();
    assert!(packed.status.success(), "{}", message(&packed));

    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let archive = out.join(format!("perennial-linux-{architecture}.tar.gz"));
    let root = folder.0.join("root");
    let mut install = Command::new(&krew);
    install.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", &folder.0).env("KREW_ROOT", &root);
    install.arg("install").arg(format!("--manifest={}", out.join("perennial.yaml").display()));
    let installed = install.arg(format!("--archive={}", archive.display())).output().unwrap();
    assert!(installed.status.success(), "{}", message(&installed));

    let plugin = root.join("bin/kubectl-perennial");
    assert!(fs::metadata(&plugin).unwrap().permissions().mode() & 0o111 != 0);
    let version = Command::new(&plugin).arg("--version").env_clear().output().unwrap();
    assert!(message(&version).contains(env!("CARGO_PKG_VERSION")), "{}", message(&version));

    // Every platform has an archive with its checksum. A program that is missing is an error.
    let manifest: Value = serde_saphyr::from_str(&fs::read_to_string(out.join("perennial.yaml")).unwrap()).unwrap();
    let listed = manifest["spec"]["platforms"].as_array().unwrap();
    for (listed, platform) in listed.iter().zip(platforms) {
        let labels = &listed["selector"]["matchLabels"];
        assert_eq!(format!("{}-{}", labels["os"], labels["arch"]).replace('"', ""), platform);
        assert!(listed["uri"].as_str().unwrap().ends_with(&format!("/v1.2.3/perennial-{platform}.tar.gz")), "{listed}");
        assert_eq!(
            Path::new(listed["bin"].as_str().unwrap()).extension().is_some_and(|end| end == "exe"),
            platform.starts_with("windows")
        );
    }
    assert_eq!(listed.len(), platforms.len());
    let some = script().arg("v1.2.3").arg(&out).arg("linux-amd64=/nowhere").output().unwrap();
    assert!(!some.status.success() && message(&some).contains("a program is missing"), "{}", message(&some));
}

/// Compares the sources, because Docker is not available.
#[test]
fn the_dockerfile_builds_the_same_image() {
    let read = |name: &str| fs::read_to_string(format!("{PACKAGING}/{name}")).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let file = read("Dockerfile");
    for line in [
        format!("FROM --platform=$BUILDPLATFORM rust:{}-bookworm AS build", env!("CARGO_PKG_RUST_VERSION")),
        "FROM scratch".to_owned(),
        format!("USER {USER}:{USER}"),
        format!("ENTRYPOINT [\"/{PROGRAM}\"]"),
        "CMD [\"run\"]".to_owned(),
    ] {
        assert!(file.lines().any(|has| has == line), "the Dockerfile lacks {line}");
    }
    assert!(
        read("../docker-bake.hcl").contains(&format!("default = \"{version}\"")),
        "docker-bake.hcl is of another version"
    );
    assert!(read("../charts/perennial/Chart.yaml").contains(&format!("appVersion: {version}\n")), "so is the chart");
    let kind = read("kind.sh");
    let tags = kind.match_indices("perennial:").map(|(at, _)| kind[at..].split_whitespace().next().unwrap());
    assert_eq!(tags.collect::<Vec<_>>(), [format!("perennial:{version}"), format!("perennial:{version}")]);
}

/// kind needs Docker; this checks the labels that Perennial reads.
#[test]
fn the_nodes_of_the_kind_cluster_are_of_both_classes() {
    let text = fs::read_to_string(format!("{PACKAGING}/kind/cluster.yaml")).unwrap();
    let cluster: Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!((&cluster["kind"], &cluster["apiVersion"]), (&"Cluster".into(), &"kind.x-k8s.io/v1alpha4".into()));
    for class in [Class::Spot, Class::OnDemand] {
        let is_it = |node: &Value| {
            let labels = serde_json::from_value(node["labels"].clone()).unwrap_or_default();
            NodeLabels::default().class_of_node(&labels) == Some(class)
        };
        assert!(cluster["nodes"].as_array().unwrap().iter().any(is_it), "no node is {class}");
    }
}
