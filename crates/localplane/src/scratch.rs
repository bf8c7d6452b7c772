//! A private folder of this user below the system's temporary folder: ports that are taken, planes that nobody named.
//!
//! Whoever holds the lock of a folder in `planes/` lives; what is not locked was left behind by a dead process and is
//! removed by the next one that comes, unless it was kept on purpose.

use std::{
    env, fs,
    fs::{DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

/// Set to anything: planes in temporary folders are not removed.
pub(crate) const KEEP_ENV: &str = "LOCALPLANE_KEEP";
/// A folder with this file in it is not removed by others.
const KEPT: &str = "kept";
/// The name of the file whose lock says that a plane is alive.
pub(crate) const LOCK: &str = "lock";

/// The private folder, made if need be.
pub(crate) fn home() -> io::Result<PathBuf> {
    let uid = rustix::process::getuid().as_raw();
    let path = env::temp_dir().join(format!("localplane-{uid}"));
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // The temporary folder is everyone's: do not walk into what somebody else put there under our name.
    let found = fs::symlink_metadata(&path)?;
    if found.is_dir() && found.uid() == uid {
        Ok(path)
    } else {
        Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{} belongs to someone else", path.display())))
    }
}

/// A new folder for a plane, locked. Removes those of dead processes first.
pub(crate) fn plane_folder() -> io::Result<(PathBuf, File)> {
    let home = home()?;
    let planes = home.join("planes");
    fs::create_dir_all(&planes)?;
    // Without this a process that cleans could take a folder that another has made and not locked yet.
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

/// Keeps this folder from being removed by others.
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
