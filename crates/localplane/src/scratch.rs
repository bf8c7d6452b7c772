//! Private folder of this user in the system's temporary folder: locks of ports, and folders of
//! temporary planes.
//!
//! A folder in `planes/` is locked while its plane is running. The next plane that starts removes
//! unlocked folders, which belong to dead processes, unless they were kept on purpose.

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
    // Held so that cleanup never removes a folder that another process created but has not locked
    // yet.
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
    let _ = fs::write(folder.join(KEPT), "remove this folder by hand\n");
}

fn remove_abandoned(planes: &Path) {
    for entry in fs::read_dir(planes).into_iter().flatten().flatten() {
        let folder = entry.path();
        let abandoned = !folder.join(KEPT).exists() && lock_file(&folder).is_ok_and(|lock| lock.try_lock().is_ok());
        if abandoned {
            let _ = fs::remove_dir_all(&folder);
        }
    }
}
