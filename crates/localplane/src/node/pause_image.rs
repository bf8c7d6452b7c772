//! The image that holds the namespaces of a pod: one program that waits forever. No registry is
//! needed for it.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::Unsupported;

/// Name of the image.
pub(crate) const PAUSE_IMAGE: &str = "localhost/localplane-pause:1";

/// `again: mov eax, 34 (pause); syscall; jmp again`, for x86_64.
const CODE: [u8; 9] = [0xb8, 34, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7];
const LOAD_ADDRESS: u64 = 0x40_0000;
const ELF_HEADER: u16 = 64;
const PROGRAM_HEADER: u16 = 56;

/// Returns the image as an OCI archive.
pub(super) fn archive() -> Result<Vec<u8>, Unsupported> {
    if std::env::consts::ARCH != "x86_64" {
        return Err(Unsupported(format!("no pause program for {}", std::env::consts::ARCH)));
    }
    let layer = tar(&[("pause".to_owned(), program(), 0o755)]);
    let config = json!({
        "architecture": "amd64",
        "os": "linux",
        "config": { "Entrypoint": ["/pause"], "User": "65535:65535" },
        "rootfs": { "type": "layers", "diff_ids": [digest(&layer)] },
    })
    .to_string()
    .into_bytes();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor(&config, "application/vnd.oci.image.config.v1+json"),
        "layers": [descriptor(&layer, "application/vnd.oci.image.layer.v1.tar")],
    })
    .to_string()
    .into_bytes();
    let mut entry = descriptor(&manifest, "application/vnd.oci.image.manifest.v1+json");
    entry["annotations"] = json!({ "io.containerd.image.name": PAUSE_IMAGE, "org.opencontainers.image.ref.name": "1" });
    entry["platform"] = json!({ "os": "linux", "architecture": "amd64" });
    let index = json!({ "schemaVersion": 2, "manifests": [entry] }).to_string().into_bytes();

    let mut files = vec![
        ("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec(), 0o644),
        ("index.json".to_owned(), index, 0o644),
    ];
    files.extend([layer, config, manifest].map(|blob| {
        let name = digest(&blob).replace(':', "/");
        (format!("blobs/{name}"), blob, 0o644)
    }));
    Ok(tar(&files))
}

/// Returns an executable that only waits.
fn program() -> Vec<u8> {
    let headers = u64::from(ELF_HEADER + PROGRAM_HEADER);
    let size = headers + CODE.len() as u64;
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(16, 0);
    for half in [2_u16, 62] {
        elf.extend(half.to_le_bytes()); // executable, x86_64
    }
    elf.extend(1_u32.to_le_bytes());
    for long in [LOAD_ADDRESS + headers, u64::from(ELF_HEADER), 0] {
        elf.extend(long.to_le_bytes()); // entry, program headers, section headers
    }
    elf.extend(0_u32.to_le_bytes());
    for half in [ELF_HEADER, PROGRAM_HEADER, 1, 0, 0, 0] {
        elf.extend(half.to_le_bytes());
    }
    for word in [1_u32, 5] {
        elf.extend(word.to_le_bytes()); // loaded, readable and executable
    }
    for long in [0, LOAD_ADDRESS, LOAD_ADDRESS, size, size, 0x1000] {
        elf.extend(long.to_le_bytes());
    }
    elf.extend(CODE);
    elf
}

fn digest(bytes: &[u8]) -> String {
    let hex: Vec<_> = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{}", hex.concat())
}

fn descriptor(bytes: &[u8], media_type: &str) -> Value {
    json!({ "mediaType": media_type, "digest": digest(bytes), "size": bytes.len() })
}

/// Returns a tar archive of files with these names, contents and modes. Names are shorter than 100
/// bytes.
fn tar(files: &[(String, Vec<u8>, u32)]) -> Vec<u8> {
    const BLOCK: usize = 512;
    let mut archive = Vec::new();
    for (name, content, mode) in files {
        let mut header = [0_u8; BLOCK];
        let mut field = |start: usize, text: &str| {
            for (place, byte) in header[start..].iter_mut().zip(text.bytes()) {
                *place = byte;
            }
        };
        field(0, name);
        field(100, &format!("{mode:07o}\0"));
        field(108, "0000000\0");
        field(116, "0000000\0");
        field(124, &format!("{:011o}\0", content.len()));
        field(136, "00000000000\0");
        // The checksum counts its own field as spaces.
        field(148, "        ");
        field(156, "0");
        field(257, "ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        for (place, byte) in header[148..].iter_mut().zip(format!("{sum:06o}\0 ").bytes()) {
            *place = byte;
        }
        archive.extend(header);
        archive.extend(content);
        archive.resize(archive.len().next_multiple_of(BLOCK), 0);
    }
    archive.resize(archive.len() + 2 * BLOCK, 0);
    archive
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        process::{Command, Stdio},
    };

    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_program_runs_and_waits() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("localplane-pause-{}", std::process::id()));
        fs::write(&path, program()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();

        let mut pause = Command::new(&path).stdin(Stdio::null()).spawn().unwrap();
        let stat = || fs::read_to_string(format!("/proc/{}/stat", pause.id())).unwrap();
        while !stat().contains(") S ") {
            assert!(!stat().contains(") Z "), "the program ended");
        }

        pause.kill().unwrap();
        pause.wait().unwrap();
        fs::remove_file(path).unwrap();
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_archive_is_read_by_tar() {
        let path = std::env::temp_dir().join(format!("localplane-pause-{}.tar", std::process::id()));
        fs::write(&path, archive().unwrap()).unwrap();

        let listed = Command::new("tar").arg("-tf").arg(&path).output().unwrap();

        assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
        let names = String::from_utf8_lossy(&listed.stdout).into_owned();
        assert!(names.starts_with("oci-layout\nindex.json\nblobs/sha256/"), "{names}");
        assert_eq!(names.lines().count(), 5);
        fs::remove_file(path).unwrap();
    }
}
