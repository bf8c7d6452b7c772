//! The cgroups of the pods of a plane.
//!
//! Cgroups are folders of the machine that outlive processes. They are removed by a shell that
//! waits on a pipe held only by this process, so also after SIGKILL.

use std::{
    fs, io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
};

/// Removes the folders in its arguments once the pipe is closed and their processes have ended.
const CLEANER: &str = r#"
read -r _
for attempt in $(seq 100); do
    left=
    for folder in "$@"; do
        [ -d "$folder" ] || continue
        find "$folder" -depth -type d -exec rmdir {} + 2> /dev/null
        [ -d "$folder" ] && left=1
    done
    [ -z "$left" ] && exit 0
    sleep 0.1
done
exit 1
"#;

/// One cgroup in every hierarchy, removed on drop and when this process ends.
#[derive(Debug)]
pub(crate) struct Cgroups {
    name: String,
    hierarchies: Vec<Hierarchy>,
    cleaner: Child,
}

/// A mounted cgroup file system.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    path: PathBuf,
    unified: bool,
}

impl Cgroups {
    /// Creates an empty cgroup for a plane.
    pub(crate) fn create() -> io::Result<Self> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("localplane-{}-{number}", std::process::id());
        let hierarchies = mounted(&fs::read_to_string("/proc/self/mounts")?);
        if hierarchies.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "no cgroup file system is mounted"));
        }
        // Started first: whatever is created after it is removed.
        let cleaner = Command::new("sh")
            .args(["-c", CLEANER, "sh"])
            .args(hierarchies.iter().map(|hierarchy| hierarchy.path.join(&name)))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let cgroups = Self { name, hierarchies, cleaner };
        cgroups.add("")?;
        Ok(cgroups)
    }

    /// Creates the cgroup of a node and returns its path below the root of every hierarchy.
    pub(crate) fn node(&self, name: &str) -> io::Result<String> {
        self.add(name)?;
        Ok(format!("/{}/{name}", self.name))
    }

    fn add(&self, name: &str) -> io::Result<()> {
        for hierarchy in &self.hierarchies {
            let path = hierarchy.path.join(&self.name).join(name);
            match fs::create_dir(&path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(with_path(&path, &error)),
                _ => {}
            }
            let parent = path.parent().unwrap_or(&hierarchy.path);
            if hierarchy.unified {
                delegate(parent)?;
                delegate(&path)?;
            } else {
                copy_cpuset(parent, &path)?;
            }
        }
        Ok(())
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        // Ends the `read` of the cleaner.
        drop(self.cleaner.stdin.take());
        let _ = self.cleaner.wait();
    }
}

/// Enables all controllers for the children of a cgroup (version 2). A cgroup without controllers,
/// beside version 1, has nothing to enable.
fn delegate(cgroup: &Path) -> io::Result<()> {
    let controllers = fs::read_to_string(cgroup.join("cgroup.controllers")).unwrap_or_default();
    let enabled = fs::read_to_string(cgroup.join("cgroup.subtree_control")).unwrap_or_default();
    for controller in controllers.split_whitespace() {
        if enabled.split_whitespace().any(|name| name == controller) {
            continue;
        }
        let path = cgroup.join("cgroup.subtree_control");
        fs::write(&path, format!("+{controller}")).map_err(|error| with_path(&path, &error))?;
    }
    Ok(())
}

/// Copies processors and memory nodes from the parent (version 1): a new cgroup has none and
/// accepts no process.
fn copy_cpuset(parent: &Path, cgroup: &Path) -> io::Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if let Ok(value) = fs::read_to_string(parent.join(file)) {
            let path = cgroup.join(file);
            fs::write(&path, value).map_err(|error| with_path(&path, &error))?;
        }
    }
    Ok(())
}

/// Returns the cgroup file systems in the text of `/proc/self/mounts`.
fn mounted(mounts: &str) -> Vec<Hierarchy> {
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (path, kind) = (fields.next()?, fields.next()?);
            let cgroup = kind == "cgroup" || kind == "cgroup2";
            (cgroup && path.starts_with("/sys/fs/cgroup"))
                .then(|| Hierarchy { path: path.into(), unified: kind == "cgroup2" })
        })
        .collect()
}

fn with_path(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_cgroups_are_found() {
        let hybrid = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\ncgroup2 /elsewhere cgroup2 rw 0 0\n";
        let found = mounted(hybrid);
        assert_eq!(
            found,
            [
                Hierarchy { path: "/sys/fs/cgroup/cpu".into(), unified: false },
                Hierarchy { path: "/sys/fs/cgroup/unified".into(), unified: true },
            ]
        );

        let unified = mounted("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n");
        assert_eq!(unified, [Hierarchy { path: "/sys/fs/cgroup".into(), unified: true }]);
    }
}
