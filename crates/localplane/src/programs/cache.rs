//! The cache: one folder per version, one lock per folder, files that appear only when they are whole.

use std::{
    env, fs,
    fs::{File, TryLockError},
    io,
    path::{Path, PathBuf},
};

use super::{Bundle, Program, Progress, sources::CACHE_ENV};

/// `$LOCALPLANE_CACHE`, `$XDG_CACHE_HOME/localplane` or `~/.cache/localplane`; the system's temporary folder without a home.
pub(crate) fn cache_home() -> PathBuf {
    let set = |name| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    set(CACHE_ENV)
        .or_else(|| set("XDG_CACHE_HOME").map(|dir| dir.join("localplane")))
        .or_else(|| env::home_dir().map(|home| home.join(".cache/localplane")))
        .unwrap_or_else(|| env::temp_dir().join("localplane-cache"))
}

/// The folder of one bundle.
#[derive(Debug)]
pub(super) struct Store {
    folder: PathBuf,
    lock: PathBuf,
}

impl Store {
    pub(super) fn of(cache: &Path, bundle: Bundle) -> Self {
        let name = bundle.folder();
        Self { folder: cache.join(&name), lock: cache.join(format!("{name}.lock")) }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The program, if it is here.
    pub(super) fn get(&self, program: Program) -> Option<PathBuf> {
        let path = self.folder.join(program.file_name());
        path.is_file().then_some(path)
    }

    /// Waits until no other process fills this store. The lock ends with the returned file, or with the process.
    pub(super) fn lock(&self, bundle: Bundle) -> io::Result<File> {
        fs::create_dir_all(&self.folder)?;
        let file = File::options().create(true).append(true).open(&self.lock)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let waiting = Progress::start(format!("waiting for another process that is getting {bundle}"));
                file.lock()?;
                waiting.finish();
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        Ok(file)
    }

    /// An empty folder to work in, on the same file system, so that [`Store::put`] is one rename.
    /// Call it with the lock held: what an interrupted process left behind goes first.
    pub(super) fn workbench(&self) -> io::Result<Workbench> {
        let path = self.folder.join(".partial");
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => fs::create_dir_all(&path)?,
        }
        Ok(Workbench { path })
    }

    /// Takes a finished file in. It becomes visible whole or not at all.
    pub(super) fn put(&self, program: Program, finished: &Path) -> io::Result<PathBuf> {
        make_executable(finished)?;
        let path = self.folder.join(program.file_name());
        fs::rename(finished, &path)?;
        Ok(path)
    }
}

/// A folder for half-done work, removed when it goes out of scope.
#[derive(Debug)]
pub(super) struct Workbench {
    pub(super) path: PathBuf,
}

impl Drop for Workbench {
    fn drop(&mut self) {
        // What stays behind is removed by the next workbench.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn make_executable(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}
