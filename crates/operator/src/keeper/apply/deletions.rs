//! Records that this process deletes, so that their deletion is not taken for that of another
//! client when the watch delivers it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::LoadedRecord;

/// Maximum number of deletions that the watch has not delivered yet.
const LIMIT: usize = 1 << 16;

/// Names of the records that are being deleted by their UIDs. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Deletions(Arc<Mutex<HashMap<String, String>>>);

impl Deletions {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn expect(&self, held: &LoadedRecord) {
        let mut expected = self.lock();
        if expected.len() >= LIMIT {
            expected.clear();
        }
        expected.extend(held.uid().map(|uid| (uid.to_owned(), held.name().to_owned())));
    }

    /// Returns the names of the records whose deletion the watch has not delivered yet.
    pub(super) fn names(&self) -> Vec<String> {
        self.lock().values().cloned().collect()
    }

    /// Whether this process deletes a record, and the watch has not delivered that yet.
    pub(super) fn contains(&self, name: &str) -> bool {
        self.lock().values().any(|deleted| deleted == name)
    }

    /// Forgets a deletion, and returns whether it was expected.
    pub(super) fn take(&self, held: &LoadedRecord) -> bool {
        held.uid().is_some_and(|uid| self.lock().remove(uid).is_some())
    }
}
