//! The cache: one folder and one lock per version. Files appear atomically.
//!
//! Programs in the cache are started, so no other user may be able to put one there: a folder or
//! file that belongs to another user or that others can write is not used.

use std::{
    env, fs,
    fs::{File, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use super::{Bundle, Program, Progress, sources::CACHE_ENV};

/// Returns `$LOCALPLANE_CACHE`, `$XDG_CACHE_HOME/localplane` or `~/.cache/localplane`, or a folder
/// in the system's temporary folder if there is no home.
pub(crate) fn cache_home() -> PathBuf {
    let set = |name| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    set(CACHE_ENV)
        .or_else(|| set("XDG_CACHE_HOME").map(|dir| dir.join("localplane")))
        .or_else(|| env::home_dir().map(|home| home.join(".cache/localplane")))
        .unwrap_or_else(|| env::temp_dir().join("localplane-cache"))
}

/// Cache folder of one bundle.
#[derive(Debug)]
pub(super) struct BundleCache {
    folder: PathBuf,
    lock: PathBuf,
}

impl BundleCache {
    pub(super) fn of(cache: &Path, bundle: Bundle) -> Self {
        let name = bundle.folder();
        Self { folder: cache.join(&name), lock: cache.join(format!("{name}.lock")) }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of a program if it is cached and only this user can have put it there.
    pub(super) fn get(&self, program: Program) -> Option<PathBuf> {
        let path = self.folder.join(program.file_name());
        (path.is_file() && self.check().is_ok() && check_private(&path).is_ok()).then_some(path)
    }

    /// Fails if another user can write to the cache.
    fn check(&self) -> io::Result<()> {
        self.folder.parent().into_iter().chain([self.folder.as_path()]).try_for_each(check_private)
    }

    /// Takes the lock, waiting for other processes. It is released when the returned file is
    /// dropped, or with the process.
    pub(super) fn lock(&self, bundle: Bundle) -> io::Result<File> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        self.check()?;
        let file = File::options().create(true).append(true).open(&self.lock)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let waiting = Progress::start(format!("waiting for another process that is fetching {bundle}"));
                file.lock()?;
                waiting.finish();
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        Ok(file)
    }

    /// Creates an empty working folder on the same file system, so that [`BundleCache::put`] is one
    /// rename. Must be called with the lock held, because it removes the folder of an interrupted
    /// process.
    pub(super) fn work_dir(&self) -> io::Result<WorkDir> {
        let path = self.folder.join(".partial");
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => fs::create_dir_all(&path)?,
        }
        Ok(WorkDir { path })
    }

    /// Moves a finished file into the cache atomically.
    pub(super) fn put(&self, program: Program, finished: &Path) -> io::Result<PathBuf> {
        make_executable(finished)?;
        let path = self.folder.join(program.file_name());
        fs::rename(finished, &path)?;
        Ok(path)
    }
}

/// A folder for incomplete files, removed on drop.
#[derive(Debug)]
pub(super) struct WorkDir {
    pub(super) path: PathBuf,
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        // On an error the next call of `work_dir` removes it.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Fails if a file or folder belongs to another user than this one or root, or if others can write
/// it. A group counts as others: its members are not known here.
fn check_private(path: &Path) -> io::Result<()> {
    let found = fs::metadata(path)?;
    let foreign = found.uid() != rustix::process::geteuid().as_raw() && found.uid() != 0;
    let writable = found.mode() & 0o022 != 0;
    let reason = match (foreign, writable) {
        (true, _) => "belongs to another user",
        (_, true) => "can be written by others",
        _ => return Ok(()),
    };
    let message = format!("{} {reason}; remove it, or set {CACHE_ENV} to another folder", path.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

fn make_executable(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_program_that_others_could_have_put_there_is_not_used() {
        let home = env::temp_dir().join(format!("localplane-private-{}", std::process::id()));
        let cache = BundleCache::of(&home, Bundle::Kwok);
        drop(cache.lock(Bundle::Kwok).unwrap());
        let program = cache.folder().join(Program::Kwok.file_name());
        fs::write(&program, "").unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        assert!(cache.get(Program::Kwok).is_some());
        assert_eq!(fs::metadata(&home).unwrap().mode() & 0o077, 0, "it is created for this user alone");

        for path in [home.as_path(), cache.folder(), program.as_path()] {
            let before = fs::metadata(path).unwrap().mode();
            for mode in [0o777, 0o775] {
                set(path, mode);
                assert!(cache.get(Program::Kwok).is_none(), "{} with mode {mode:o}", path.display());
            }
            set(path, before);
        }
        set(&home, 0o777);
        let error = cache.lock(Bundle::Kwok).unwrap_err().to_string();
        assert!(error.contains("can be written by others") && error.contains(CACHE_ENV), "{error}");
        fs::remove_dir_all(&home).unwrap();
    }
}
