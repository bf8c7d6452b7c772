//! A limit of memory that the kernel enforces.

use std::{fs, io, path::PathBuf};

/// A memory cgroup, removed with its process.
pub(crate) struct Cgroup(PathBuf);

impl Cgroup {
    /// Limits the memory of a process.
    pub(crate) fn limit(pid: u32, bytes: u64) -> io::Result<Self> {
        let name = format!("perennial-attack-{pid}");
        let (v1, v2) = (PathBuf::from("/sys/fs/cgroup/memory"), PathBuf::from("/sys/fs/cgroup"));
        let (folder, file) = if v1.is_dir() { (v1, "memory.limit_in_bytes") } else { (v2, "memory.max") };
        let folder = folder.join(name);
        fs::create_dir(&folder)?;
        let created = Self(folder);
        fs::write(created.0.join(file), bytes.to_string())?;
        fs::write(created.0.join("cgroup.procs"), pid.to_string())?;
        Ok(created)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Fails while the process still exists; an empty cgroup costs nothing.
        let _ = fs::remove_dir(&self.0);
    }
}
