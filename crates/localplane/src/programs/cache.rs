//! The cache: one folder and one lock per version. Files appear atomically.

use std::{
    env, fs,
    fs::{File, TryLockError},
    io,
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

    /// Returns the path of a program if it is cached.
    pub(super) fn get(&self, program: Program) -> Option<PathBuf> {
        let path = self.folder.join(program.file_name());
        path.is_file().then_some(path)
    }

    /// Takes the lock, waiting for other processes. It is released when the returned file is
    /// dropped, or with the process.
    pub(super) fn lock(&self, bundle: Bundle) -> io::Result<File> {
        fs::create_dir_all(&self.folder)?;
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

fn make_executable(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}
