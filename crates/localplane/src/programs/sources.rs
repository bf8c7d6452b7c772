//! The sources of programs, tried in order.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use super::{
    Attempt, Bundle, Downloads, Program, Programs, Unavailable,
    cache::{BundleCache, cache_home},
    debian, go,
};
use crate::versions::Kubernetes;

/// Folders with existing programs, separated as in `PATH`.
pub const ASSETS_ENV: &str = "LOCALPLANE_ASSETS";
/// Folder of the cache for downloaded and built programs.
pub const CACHE_ENV: &str = "LOCALPLANE_CACHE";
/// If set, release binaries are not downloaded.
pub const NO_DOWNLOAD_ENV: &str = "LOCALPLANE_NO_DOWNLOAD";
/// If set, programs are not built.
pub const NO_BUILD_ENV: &str = "LOCALPLANE_NO_BUILD";
/// The equivalent of [`ASSETS_ENV`] in controller-runtime's envtest.
const KUBEBUILDER_ENV: &str = "KUBEBUILDER_ASSETS";

/// Sources of programs. Use [`Sources::from_env`]; tests restrict it.
#[derive(Debug, Clone)]
pub struct Sources {
    folders: Vec<PathBuf>,
    cache: PathBuf,
    downloads: Option<Downloads>,
    build: bool,
}

impl Sources {
    /// Returns the sources configured in the environment.
    pub fn from_env() -> Self {
        let set = |name| env::var_os(name).filter(|v| !v.is_empty());
        let folders = [ASSETS_ENV, KUBEBUILDER_ENV]
            .into_iter()
            .filter_map(set)
            .flat_map(|value| env::split_paths(&value).collect::<Vec<_>>())
            .collect();
        Self {
            folders,
            cache: cache_home(),
            downloads: set(NO_DOWNLOAD_ENV).is_none().then(Downloads::from_env),
            build: set(NO_BUILD_ENV).is_none(),
        }
    }

    /// Searches this folder before all others. It may contain only some of the programs.
    #[must_use]
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folders.insert(0, folder.into());
        self
    }

    /// Removes the folders set in the environment.
    #[must_use]
    pub fn without_folders(mut self) -> Self {
        self.folders.clear();
        self
    }

    /// Sets the folder of the cache.
    #[must_use]
    pub fn cache(mut self, folder: impl Into<PathBuf>) -> Self {
        self.cache = folder.into();
        self
    }

    /// Sets the download addresses; `None` disables downloads.
    #[must_use]
    pub fn downloads(mut self, downloads: Option<Downloads>) -> Self {
        self.downloads = downloads;
        self
    }

    /// Enables or disables builds from Go modules.
    #[must_use]
    pub fn build(mut self, allowed: bool) -> Self {
        self.build = allowed;
        self
    }

    /// Finds, downloads or builds these programs. A build takes minutes and shows its progress.
    pub fn find(&self, kubernetes: Kubernetes, wanted: &[Program]) -> Result<Programs, Unavailable> {
        let mut found = Programs::default();
        let mut missing = Vec::new();
        for program in wanted {
            match self.find_local(*program, kubernetes) {
                Some(path) => {
                    found.paths.insert(*program, path);
                }
                None => missing.push(*program),
            }
        }
        if let Some(downloads) = self.downloads.as_ref().filter(|_| !missing.is_empty()) {
            let downloaded: Vec<_> =
                missing.iter().copied().filter(|program| program.bundle(kubernetes).is_downloaded()).collect();
            downloads.probe(&downloaded);
        }
        for bundle in Bundle::all(kubernetes) {
            let programs: Vec<_> = missing.iter().copied().filter(|p| p.bundle(kubernetes) == bundle).collect();
            if !programs.is_empty() {
                found.paths.extend(self.download_or_build(bundle, kubernetes, programs)?);
            }
        }
        Ok(found)
    }

    /// Returns the path of a program in a named folder or in the cache.
    fn find_local(&self, program: Program, kubernetes: Kubernetes) -> Option<PathBuf> {
        self.folders
            .iter()
            .map(|folder| folder.join(program.file_name()))
            .find(|path| is_executable(path))
            .map(|path| fs::canonicalize(&path).unwrap_or(path))
            .or_else(|| BundleCache::of(&self.cache, program.bundle(kubernetes)).get(program))
    }

    /// Downloads or builds programs, holding the lock of the bundle.
    fn download_or_build(
        &self,
        bundle: Bundle,
        kubernetes: Kubernetes,
        mut missing: Vec<Program>,
    ) -> Result<Vec<(Program, PathBuf)>, Unavailable> {
        let store = BundleCache::of(&self.cache, bundle);
        let mut attempts = self.failed_lookups(&missing, &store);
        let mut found = Vec::new();
        let unavailable =
            |programs: Vec<Program>, attempts| Err(Unavailable { programs, version: bundle.to_string(), attempts });
        let cache_write = format!("writing to the cache {}", store.folder().display());

        let (_lock, work_dir) = match store.lock(bundle).and_then(|lock| Ok((lock, store.work_dir()?))) {
            Ok(held) => held,
            Err(error) => {
                attempts.push(Attempt::new(cache_write, error.to_string()));
                return unavailable(missing, attempts);
            }
        };
        // The previous lock holder may have added the programs.
        missing.retain(|program| match store.get(*program) {
            Some(path) => {
                found.push((*program, path));
                false
            }
            None => true,
        });

        match &self.downloads {
            None => attempts.push(Attempt::new("download", "disabled")),
            Some(_) if !bundle.is_downloaded() => {}
            Some(downloads) => missing.retain(|program| {
                let result = downloads
                    .get(*program, kubernetes, &work_dir.path)
                    .map_err(|error| (format!("download from {}", downloads.base(*program)), error.to_string()))
                    .and_then(|file| store.put(*program, &file).map_err(|e| (cache_write.clone(), e.to_string())));
                match result {
                    Ok(path) => {
                        found.push((*program, path));
                        false
                    }
                    Err((source, reason)) => {
                        let attempt = Attempt::new(source, reason);
                        if !attempts.contains(&attempt) {
                            attempts.push(attempt);
                        }
                        true
                    }
                }
            }),
        }
        if missing.is_empty() {
            return Ok(found);
        }

        if self.downloads.is_some() || self.build {
            missing.retain(|program| {
                if debian::package(*program).is_none() {
                    return true;
                }
                let result = debian::get(*program, &work_dir.path)
                    .and_then(|file| store.put(*program, &file).map_err(|error| error.to_string()));
                match result {
                    Ok(path) => {
                        found.push((*program, path));
                        false
                    }
                    Err(reason) => {
                        attempts.push(Attempt::new("a Debian package", reason));
                        true
                    }
                }
            });
        }
        if missing.is_empty() {
            return Ok(found);
        }

        if !self.build {
            attempts.push(Attempt::new("build from Go modules", "disabled"));
            return unavailable(missing, attempts);
        }
        match go::build(bundle, &missing, &work_dir.path) {
            Ok(built) => {
                for (program, file) in built {
                    match store.put(program, &file) {
                        Ok(path) => found.push((program, path)),
                        Err(error) => {
                            attempts.push(Attempt::new(cache_write, error.to_string()));
                            return unavailable(missing, attempts);
                        }
                    }
                }
                Ok(found)
            }
            Err(error) => {
                attempts.push(Attempt::new("build from Go modules", error.to_string()));
                unavailable(missing, attempts)
            }
        }
    }

    /// Returns the failed attempts for the named folders and the cache.
    fn failed_lookups(&self, missing: &[Program], store: &BundleCache) -> Vec<Attempt> {
        let names = missing.iter().map(|p| p.file_name()).collect::<Vec<_>>().join(", ");
        let mut attempts: Vec<_> = self
            .folders
            .iter()
            .map(|folder| {
                let reason = if folder.is_dir() {
                    format!("contains no executable {names}")
                } else {
                    "no such folder".to_owned()
                };
                Attempt::new(format!("folder {}", folder.display()), reason)
            })
            .collect();
        if attempts.is_empty() {
            attempts.push(Attempt::new(format!("a named folder ({ASSETS_ENV}, {KUBEBUILDER_ENV})"), "not set"));
        }
        attempts.push(Attempt::new(format!("cache {}", store.folder().display()), format!("contains no {names}")));
        attempts
    }
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}
