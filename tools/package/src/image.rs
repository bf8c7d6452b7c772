//! OCI image layout in one tar file, for `docker load`, `podman load`, `kind load image-archive`,
//! `skopeo copy oci-archive:` or `docker-archive:`, and `ctr images import`. It carries the full
//! name that a kubelet resolves a short one to. The image contains the program and nothing else: no
//! shell, no libc, no package manager.

use std::fmt::Write as _;

use anyhow::ensure;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{Entry, tar};

/// User ID in the chart and the manifests.
pub const USER: u32 = 65532;
pub const PROGRAM: &str = "usr/bin/perennial";

/// Program for one OCI architecture: `amd64`, `arm64`.
#[derive(Debug, Clone)]
pub struct Build {
    pub architecture: String,
    pub program: Vec<u8>,
    pub sbom: Option<Vec<u8>>,
    /// Loader and libraries of a program that is not static, as tests build it.
    pub libraries: Vec<Entry>,
}

/// Builds the tar file of an image for these architectures.
pub fn image(name: &str, version: &str, builds: &[Build]) -> anyhow::Result<Vec<u8>> {
    ensure!(!builds.is_empty(), "an image needs at least one program");
    let mut blobs = Blobs::default();
    let mut manifests = Vec::new();
    let mut saved = Vec::new();
    let full = full_name(name);
    for build in builds {
        let complete = is_static(&build.program) || !build.libraries.is_empty();
        ensure!(complete, "the program for {} is not static: build it for musl", build.architecture);
        let manifest = manifest(&mut blobs, version, build)?;
        // One name has one image in this format: the version names the first one.
        let mut tags = Vec::new();
        if saved.is_empty() {
            tags.push(format!("{full}:{version}"));
        }
        if builds.len() > 1 {
            tags.push(format!("{full}:{version}-{}", build.architecture));
        }
        saved.push(json!({
            "Config": path_of(&manifest["config"]),
            "RepoTags": tags,
            "Layers": manifest["layers"].as_array().into_iter().flatten().map(path_of).collect::<Vec<_>>(),
        }));
        let mut described = blobs.add(MANIFEST, &manifest)?;
        described["platform"] = json!({ "os": "linux", "architecture": build.architecture });
        manifests.push(described);
    }
    let mut top = match &manifests[..] {
        [only] => only.clone(),
        all => blobs.add(INDEX, &json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": all }))?,
    };
    top["annotations"] = json!({
        "org.opencontainers.image.ref.name": version,
        "io.containerd.image.name": format!("{full}:{version}"),
    });
    let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [top] });
    let mut files = vec![
        Entry::file("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()),
        Entry::file("index.json", 0o644, serde_json::to_vec(&index)?),
        // The format of `docker save`, for programs that do not read OCI layouts.
        Entry::file("manifest.json", 0o644, serde_json::to_vec(&saved)?),
    ];
    files.extend(blobs.0);
    tar(&files)
}

/// Returns the name with its registry and path: `perennial` is `docker.io/library/perennial`.
fn full_name(name: &str) -> String {
    match name.split_once('/') {
        None => format!("docker.io/library/{name}"),
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => name.to_owned(),
        Some(_) => format!("docker.io/{name}"),
    }
}

/// Returns the path of a blob in the archive.
fn path_of(described: &Value) -> String {
    format!("blobs/{}", described["digest"].as_str().unwrap_or_default().replace(':', "/"))
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

fn manifest(blobs: &mut Blobs, version: &str, build: &Build) -> anyhow::Result<Value> {
    let layer = layer(build)?;
    let config = json!({
        "os": "linux",
        "architecture": build.architecture,
        "config": {
            "User": format!("{USER}:{USER}"),
            "Entrypoint": [format!("/{PROGRAM}")],
            "Cmd": ["run"],
            "Env": ["PATH=/usr/bin"],
            "Labels": {
                "org.opencontainers.image.title": "perennial",
                "org.opencontainers.image.version": version,
                "org.opencontainers.image.licenses": env!("CARGO_PKG_LICENSE"),
                "org.opencontainers.image.source": env!("CARGO_PKG_REPOSITORY"),
            },
        },
        "rootfs": { "type": "layers", "diff_ids": [digest(&layer)] },
    });
    let config = blobs.add(CONFIG, &config)?;
    let layer = blobs.add_bytes(LAYER, layer);
    Ok(json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer] }))
}

/// Root file system of the container.
fn layer(build: &Build) -> anyhow::Result<Vec<u8>> {
    let mut files = vec![
        Entry::file("etc/passwd", 0o644, format!("perennial:x:{USER}:{USER}::/:/sbin/nologin\n")),
        Entry::file("etc/group", 0o644, format!("perennial:x:{USER}:\n")),
        Entry::file(PROGRAM, 0o755, build.program.clone()),
    ];
    files.extend(build.libraries.iter().cloned());
    if let Some(sbom) = &build.sbom {
        files.push(Entry::file("usr/share/perennial/sbom.cdx.json", 0o644, sbom.clone()));
    }
    tar(&files)
}

/// Blobs by digest, each once.
#[derive(Debug, Default)]
struct Blobs(Vec<Entry>);

impl Blobs {
    fn add(&mut self, media_type: &str, value: &Value) -> anyhow::Result<Value> {
        Ok(self.add_bytes(media_type, serde_json::to_vec(value)?))
    }

    fn add_bytes(&mut self, media_type: &str, bytes: Vec<u8>) -> Value {
        let digest = digest(&bytes);
        let path = format!("blobs/{}", digest.replace(':', "/"));
        let described = json!({ "mediaType": media_type, "digest": digest, "size": bytes.len() });
        if self.0.iter().all(|known| known.path != path) {
            self.0.push(Entry::file(&path, 0o644, bytes));
        }
        described
    }
}

pub(crate) fn digest(bytes: &[u8]) -> String {
    let mut text = String::from("sha256:");
    for byte in Sha256::digest(bytes) {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Returns whether an ELF program needs no interpreter: the image has none.
pub fn is_static(program: &[u8]) -> bool {
    const INTERPRETER: u32 = 3;
    let number = |at: usize, size: usize| -> Option<u64> {
        let bytes = program.get(at..at + size)?;
        Some(bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    let headers = || -> Option<bool> {
        if program.get(..5)? != b"\x7fELF\x02" {
            return None;
        }
        let (at, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
        for index in 0..count {
            let kind = number(usize::try_from(at + index * size).ok()?, 4)?;
            if kind == u64::from(INTERPRETER) {
                return Some(false);
            }
        }
        Some(true)
    };
    headers().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elf(kind: u8) -> Vec<u8> {
        let mut program = vec![0u8; 64 + 56];
        program[..5].copy_from_slice(b"\x7fELF\x02");
        program[32] = 64;
        program[54] = 56;
        program[56] = 1;
        program[64] = kind;
        program
    }

    fn build(architecture: &str) -> Build {
        Build { architecture: architecture.to_owned(), program: elf(1), sbom: None, libraries: Vec::new() }
    }

    /// Returns the content of a file in a tar archive.
    fn content<'a>(tar: &'a [u8], path: &str) -> Option<&'a [u8]> {
        let mut at = 0;
        while tar.get(at).is_some_and(|byte| *byte != 0) {
            let text = |range: std::ops::Range<usize>| String::from_utf8_lossy(&tar[at..][range]).into_owned();
            let name = text(0..100);
            let size = usize::from_str_radix(text(124..135).trim_end_matches('\0'), 8).unwrap();
            if name.trim_end_matches('\0') == path {
                return Some(&tar[at + 512..at + 512 + size]);
            }
            at += 512 + size.next_multiple_of(512);
        }
        None
    }

    fn blob(tar: &[u8], described: &Value) -> Vec<u8> {
        let path = format!("blobs/{}", described["digest"].as_str().unwrap().replace(':', "/"));
        let bytes = content(tar, &path).unwrap().to_vec();
        assert_eq!(
            (bytes.len() as u64, digest(&bytes).as_str()),
            (described["size"].as_u64().unwrap(), described["digest"].as_str().unwrap())
        );
        bytes
    }

    fn parsed(bytes: &[u8]) -> Value {
        serde_json::from_slice(bytes).unwrap()
    }

    #[test]
    fn an_image_for_two_architectures_is_consistent() {
        let tar = image("perennial", "1.2.3", &[build("amd64"), build("arm64")]).unwrap();

        let index = parsed(content(&tar, "index.json").unwrap());
        assert_eq!(index["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"], "1.2.3");
        let inner = parsed(&blob(&tar, &index["manifests"][0]));
        assert_eq!(inner["manifests"].as_array().unwrap().len(), 2);
        for described in inner["manifests"].as_array().unwrap() {
            let manifest = parsed(&blob(&tar, described));
            let config = parsed(&blob(&tar, &manifest["config"]));
            assert_eq!(
                (&config["config"]["User"], &config["architecture"]),
                (&"65532:65532".into(), &described["platform"]["architecture"])
            );
            let layer = blob(&tar, &manifest["layers"][0]);
            assert_eq!(config["rootfs"]["diff_ids"][0], digest(&layer));
            assert_eq!(content(&layer, PROGRAM).unwrap(), elf(1));
            assert!(content(&layer, "bin/sh").is_none());
        }
    }

    #[test]
    fn every_loader_finds_the_full_name() {
        let tar = image("perennial", "1.2.3", &[build("amd64")]).unwrap();

        let index = parsed(content(&tar, "index.json").unwrap());
        let annotations = &index["manifests"][0]["annotations"];
        assert_eq!(annotations["io.containerd.image.name"], "docker.io/library/perennial:1.2.3");
        let saved = parsed(content(&tar, "manifest.json").unwrap());
        assert_eq!(saved[0]["RepoTags"], json!(["docker.io/library/perennial:1.2.3"]));
        for path in [&saved[0]["Config"], &saved[0]["Layers"][0]] {
            assert!(content(&tar, path.as_str().unwrap()).is_some(), "{path}");
        }
        let both = image("perennial", "1.2.3", &[build("amd64"), build("arm64")]).unwrap();
        let saved = parsed(content(&both, "manifest.json").unwrap());
        let tags = ["docker.io/library/perennial:1.2.3", "docker.io/library/perennial:1.2.3-amd64"];
        assert_eq!(saved[0]["RepoTags"], json!(tags));
        assert_eq!(saved[1]["RepoTags"], json!(["docker.io/library/perennial:1.2.3-arm64"]));
        let names = ["perennial", "team/perennial", "registry.example.com/perennial", "localhost:5000/x"];
        let full = ["docker.io/library/perennial", "docker.io/team/perennial", names[2], names[3]];
        assert_eq!(names.map(full_name), full);
    }

    #[test]
    fn the_same_program_gives_the_same_image() {
        let image = || image("perennial", "1.2.3", &[build("amd64")]).unwrap();

        assert_eq!(image(), image());
    }

    #[test]
    fn a_dynamically_linked_program_is_refused() {
        let dynamic = Build { program: elf(3), ..build("amd64") };

        assert!(image("perennial", "1.2.3", &[dynamic]).unwrap_err().to_string().contains("not static"));
        assert!(!is_static(b"#!/bin/sh\n"));
    }
}
