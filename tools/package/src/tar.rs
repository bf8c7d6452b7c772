//! Reproducible archives in the ustar format: no timestamps, no user names.

/// Type of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    File,
    Folder,
}

/// An entry.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Path without a leading slash.
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

/// An archive. Every entry belongs to root.
#[derive(Debug, Clone, Default)]
pub struct Tar(Vec<u8>);

const BLOCK: usize = 512;

impl Tar {
    /// Archives these files and their parent folders.
    pub fn of(files: &[Entry]) -> anyhow::Result<Self> {
        let mut tar = Self::default();
        let mut folders = std::collections::BTreeSet::new();
        for file in files {
            let above = file.path.match_indices('/').map(|(at, _)| &file.path[..at]);
            for folder in above.filter(|folder| !folder.is_empty() && *folder != ".") {
                if folders.insert(folder.to_owned()) {
                    tar.push(&Entry::folder(folder))?;
                }
            }
            tar.push(file)?;
        }
        Ok(tar)
    }

    pub fn push(&mut self, entry: &Entry) -> anyhow::Result<()> {
        let path = match entry.kind {
            Kind::File => entry.path.clone(),
            Kind::Folder => format!("{}/", entry.path.trim_end_matches('/')),
        };
        anyhow::ensure!(path.len() <= 100, "{path} is too long for an archive");
        let mut header = [0u8; BLOCK];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, path.as_bytes());
        put(100, format!("{:07o}", entry.mode).as_bytes());
        put(108, b"0000000");
        put(116, b"0000000");
        put(124, format!("{:011o}", entry.content.len()).as_bytes());
        put(136, b"00000000000");
        put(148, b"        ");
        put(156, if entry.kind == Kind::Folder { b"5" } else { b"0" });
        put(257, b"ustar\x0000");
        put(265, b"root");
        put(297, b"root");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend(header);
        self.0.extend(&entry.content);
        self.0.resize(self.0.len().next_multiple_of(BLOCK), 0);
        Ok(())
    }

    /// Returns the bytes, with the two empty blocks that end an archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.0.extend([0; 2 * BLOCK]);
        self.0
    }
}
