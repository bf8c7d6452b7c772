//! Archives in the ustar format that are the same for every build: without times and without names
//! of builders.

use std::io;

use anyhow::Context;

/// The kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    File,
    Folder,
}

/// An entry of an archive.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Without a leading slash.
    pub path: String,
    pub kind: Kind,
    pub mode: u32,
    pub content: Vec<u8>,
}

impl Entry {
    pub fn file(path: &str, mode: u32, content: impl Into<Vec<u8>>) -> Self {
        Self { path: path.to_owned(), kind: Kind::File, mode, content: content.into() }
    }

    pub fn folder(path: &str) -> Self {
        Self { path: path.to_owned(), kind: Kind::Folder, mode: 0o755, content: Vec::new() }
    }
}

/// Packs files and the folders above them. Everything belongs to root.
pub fn tar(files: &[Entry]) -> anyhow::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut folders = std::collections::BTreeSet::new();
    for file in files {
        let above = file.path.match_indices('/').map(|(at, _)| &file.path[..at]);
        for folder in above.filter(|folder| !folder.is_empty() && *folder != ".") {
            if folders.insert(folder.to_owned()) {
                append(&mut archive, &Entry::folder(folder))?;
            }
        }
        append(&mut archive, file)?;
    }
    Ok(archive.into_inner()?)
}

fn append(archive: &mut tar::Builder<Vec<u8>>, entry: &Entry) -> anyhow::Result<()> {
    let (path, kind) = match entry.kind {
        Kind::File => (entry.path.clone(), tar::EntryType::Regular),
        Kind::Folder => (format!("{}/", entry.path.trim_end_matches('/')), tar::EntryType::Directory),
    };
    let mut header = tar::Header::new_ustar();
    // Not `set_path`, which removes the `./` that Debian packages begin their paths with.
    let name =
        header.as_old_mut().name.get_mut(..path.len()).with_context(|| format!("{path} is too long for an archive"))?;
    name.copy_from_slice(path.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(entry.mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_username("root")?;
    header.set_groupname("root")?;
    header.set_mtime(0);
    header.set_size(u64::try_from(entry.content.len())?);
    header.set_cksum();
    let append: io::Result<()> = archive.append(&header, entry.content.as_slice());
    append.with_context(|| format!("cannot archive {path}"))
}
