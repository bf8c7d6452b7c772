//! The order of the sources, and what is done when one of them has nothing.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use super::{
    Attempt, Bundle, Downloads, Program, Programs, Unavailable,
    cache::{Store, cache_home},
    go,
};
use crate::versions::Kubernetes;

/// Folders (separated as in `PATH`) that hold ready-made programs.
pub const ASSETS_ENV: &str = "LOCALPLANE_ASSETS";
/// Where programs are kept once they are downloaded or built.
pub const CACHE_ENV: &str = "LOCALPLANE_CACHE";
/// Set to anything: nothing is downloaded as a release binary.
pub const NO_DOWNLOAD_ENV: &str = "LOCALPLANE_NO_DOWNLOAD";
/// Set to anything: nothing is built.
pub const NO_BUILD_ENV: &str = "LOCALPLANE_NO_BUILD";
/// The name that controller-runtime's envtest gave to the same thing.
const KUBEBUILDER_ENV: &str = "KUBEBUILDER_ASSETS";

/// Where programs may come from. [`Sources::from_env`] is what everyone wants; tests narrow it.
#[derive(Debug, Clone)]
pub struct Sources {
    folders: Vec<PathBuf>,
    cache: PathBuf,
    downloads: Option<Downloads>,
    build: bool,
}

impl Sources {
    /// As the environment says.
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

    /// Looks in this folder before all others. One that has only some of the programs is used for those.
    #[must_use]
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folders.insert(0, folder.into());
        self
    }

    /// Forgets the folders that the environment named.
    #[must_use]
    pub fn without_folders(mut self) -> Self {
        self.folders.clear();
        self
    }

    /// Keeps what is downloaded or built here.
    #[must_use]
    pub fn cache(mut self, folder: impl Into<PathBuf>) -> Self {
        self.cache = folder.into();
        self
    }

    /// Downloads from there; `None` never downloads.
    #[must_use]
    pub fn downloads(mut self, downloads: Option<Downloads>) -> Self {
        self.downloads = downloads;
        self
    }

    /// Whether building from Go modules is allowed.
    #[must_use]
    pub fn build(mut self, allowed: bool) -> Self {
        self.build = allowed;
        self
    }

    /// Finds or makes these programs. From the cache it takes no time; a build takes minutes, and says so.
    pub fn find(&self, kubernetes: Kubernetes, wanted: &[Program]) -> Result<Programs, Unavailable> {
        let mut found = Programs::default();
        let mut missing = Vec::new();
        for program in wanted {
            match self.at_hand(*program, kubernetes) {
                Some(path) => {
                    found.paths.insert(*program, path);
                }
                None => missing.push(*program),
            }
        }
        if let Some(downloads) = self.downloads.as_ref().filter(|_| !missing.is_empty()) {
            downloads.probe(&missing);
        }
        for bundle in [Bundle::Kubernetes(kubernetes), Bundle::Kwok] {
            let programs: Vec<_> = missing.iter().copied().filter(|p| p.bundle(kubernetes) == bundle).collect();
            if !programs.is_empty() {
                found.paths.extend(self.obtain(bundle, kubernetes, programs)?);
            }
        }
        Ok(found)
    }

    /// What needs no work: a named folder or the cache.
    fn at_hand(&self, program: Program, kubernetes: Kubernetes) -> Option<PathBuf> {
        self.folders
            .iter()
            .map(|folder| folder.join(program.file_name()))
            .find(|path| is_executable(path))
            .map(|path| fs::canonicalize(&path).unwrap_or(path))
            .or_else(|| Store::of(&self.cache, program.bundle(kubernetes)).get(program))
    }

    /// Downloads or builds, under the lock of the bundle.
    fn obtain(
        &self,
        bundle: Bundle,
        kubernetes: Kubernetes,
        mut missing: Vec<Program>,
    ) -> Result<Vec<(Program, PathBuf)>, Unavailable> {
        let store = Store::of(&self.cache, bundle);
        let mut attempts = self.in_vain(&missing, &store);
        let mut found = Vec::new();
        let unavailable =
            |programs: Vec<Program>, attempts| Err(Unavailable { programs, version: bundle.to_string(), attempts });
        let cache_way = format!("writing to the cache {}", store.folder().display());

        let (_lock, workbench) = match store.lock(bundle).and_then(|lock| Ok((lock, store.workbench()?))) {
            Ok(held) => held,
            Err(error) => {
                attempts.push(Attempt::new(cache_way, error.to_string()));
                return unavailable(missing, attempts);
            }
        };
        // Whoever held the lock before us may have brought what we want.
        missing.retain(|program| match store.get(*program) {
            Some(path) => {
                found.push((*program, path));
                false
            }
            None => true,
        });

        match &self.downloads {
            None => attempts.push(Attempt::new("download", "switched off")),
            Some(downloads) => missing.retain(|program| {
                let result = downloads
                    .get(*program, kubernetes, &workbench.path)
                    .map_err(|error| (format!("download from {}", downloads.base(*program)), error.to_string()))
                    .and_then(|file| store.put(*program, &file).map_err(|e| (cache_way.clone(), e.to_string())));
                match result {
                    Ok(path) => {
                        found.push((*program, path));
                        false
                    }
                    Err((way, why)) => {
                        let attempt = Attempt::new(way, why);
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

        if !self.build {
            attempts.push(Attempt::new("build from Go modules", "switched off"));
            return unavailable(missing, attempts);
        }
        match go::build(bundle, &missing, &workbench.path) {
            Ok(built) => {
                for (program, file) in built {
                    match store.put(program, &file) {
                        Ok(path) => found.push((program, path)),
                        Err(error) => {
                            attempts.push(Attempt::new(cache_way, error.to_string()));
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

    /// What is to be said of the folders and the cache, had they not what was wanted.
    fn in_vain(&self, missing: &[Program], store: &Store) -> Vec<Attempt> {
        let names = missing.iter().map(|p| p.file_name()).collect::<Vec<_>>().join(", ");
        let mut attempts: Vec<_> = self
            .folders
            .iter()
            .map(|folder| {
                let why = if folder.is_dir() {
                    format!("no executable {names} in it")
                } else {
                    "there is no such folder".to_owned()
                };
                Attempt::new(format!("folder {}", folder.display()), why)
            })
            .collect();
        if attempts.is_empty() {
            attempts.push(Attempt::new(format!("a named folder ({ASSETS_ENV}, {KUBEBUILDER_ENV})"), "none was named"));
        }
        attempts.push(Attempt::new(format!("cache {}", store.folder().display()), format!("no {names} in it")));
        attempts
    }
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}
