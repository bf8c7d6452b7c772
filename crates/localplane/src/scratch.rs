//! Private folder of this user in the system's temporary folder: locks of ports, and folders of
//! temporary planes.
//!
//! A folder in `planes/` is locked while its plane is running. The next plane that starts removes
//! unlocked folders, which belong to dead processes. Folders that were kept on purpose stay, the
//! newest few of them: an etcd alone takes more than 100 MB.

use std::{
    env, fs,
    fs::{DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

/// If set, folders of temporary planes are not removed.
pub(crate) const KEEP_ENV: &str = "LOCALPLANE_KEEP";
/// Name of the file that prevents the removal of a folder.
const KEPT: &str = "kept";
/// Number of kept folders that stay.
const KEPT_FOLDERS: usize = 5;
/// Name of the file that a running plane locks.
pub(crate) const LOCK: &str = "lock";

/// Returns the private folder and creates it if needed.
pub(crate) fn home() -> io::Result<PathBuf> {
    let uid = rustix::process::getuid().as_raw();
    let path = env::temp_dir().join(format!("localplane-{uid}"));
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // The temporary folder is shared: refuse a folder that another user created with this name.
    let found = fs::symlink_metadata(&path)?;
    if found.is_dir() && found.uid() == uid {
        Ok(path)
    } else {
        Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{} belongs to another user", path.display())))
    }
}

/// Creates and locks a new folder for a plane. Removes folders of dead processes first.
pub(crate) fn plane_folder() -> io::Result<(PathBuf, File)> {
    let home = home()?;
    let planes = home.join("planes");
    fs::create_dir_all(&planes)?;
    // LoadedRecord so that cleanup never removes a folder that another process created but has not
    // locked yet.
    let all = File::options().create(true).append(true).open(home.join("planes.lock"))?;
    all.lock()?;
    remove_abandoned(&planes);
    let pid = std::process::id();
    for number in 0.. {
        let folder = planes.join(format!("{pid}-{number}"));
        match fs::create_dir(&folder) {
            Ok(()) => {
                let lock = lock_file(&folder)?;
                lock.lock()?;
                return Ok((folder, lock));
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::StorageFull.into())
}

pub(crate) fn lock_file(folder: &Path) -> io::Result<File> {
    File::options().create(true).append(true).open(folder.join(LOCK))
}

/// Marks this folder so that it is not removed.
pub(crate) fn keep(folder: &Path) {
    let _ = fs::write(folder.join(KEPT), "removed when newer folders were kept, or by hand\n");
}

fn remove_abandoned(planes: &Path) {
    let mut kept = Vec::new();
    for entry in fs::read_dir(planes).into_iter().flatten().flatten() {
        let folder = entry.path();
        if !lock_file(&folder).is_ok_and(|lock| lock.try_lock().is_ok()) {
            continue;
        }
        match fs::metadata(folder.join(KEPT)).and_then(|file| file.modified()) {
            Ok(since) => kept.push((since, folder)),
            Err(_) => drop(fs::remove_dir_all(&folder)),
        }
    }
    kept.sort();
    for (_, folder) in kept.iter().rev().skip(KEPT_FOLDERS) {
        let _ = fs::remove_dir_all(folder);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn abandoned_folders_are_removed_and_only_the_newest_kept_ones_stay() {
        let planes = home().unwrap().join(format!("test-{}", std::process::id()));
        let folder = |name: &str| {
            let folder = planes.join(name);
            fs::create_dir_all(&folder).unwrap();
            folder
        };
        folder("abandoned");
        let running = lock_file(&folder("running")).unwrap();
        running.lock().unwrap();
        for age in 0..=KEPT_FOLDERS as u64 {
            let kept = folder(&format!("kept-{age}"));
            keep(&kept);
            let since = SystemTime::now() - Duration::from_secs(age * 60);
            File::options().append(true).open(kept.join(KEPT)).unwrap().set_modified(since).unwrap();
        }

        remove_abandoned(&planes);

        let left = fs::read_dir(&planes).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut left: Vec<String> = left.collect();
        left.sort();
        fs::remove_dir_all(&planes).unwrap();
        assert_eq!(left, ["kept-0", "kept-1", "kept-2", "kept-3", "kept-4", "running"]);
    }
}
