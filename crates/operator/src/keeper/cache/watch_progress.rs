//! Progress of a watch: the resourceVersion up to which it has delivered events.

/// The newest resourceVersion that a watch has delivered.
#[derive(Debug, Default)]
pub(super) struct WatchProgress {
    upto: u64,
    /// The newest resourceVersion so far, while a list is being delivered: it is not ordered.
    listing: Option<u64>,
}

impl WatchProgress {
    pub(super) fn begin_list(&mut self) {
        self.listing = Some(0);
    }

    pub(super) fn listed(&mut self, version: u64) {
        self.listing = self.listing.map(|newest| newest.max(version));
    }

    pub(super) fn end_list(&mut self) {
        self.upto = self.listing.take().unwrap_or(self.upto);
    }

    pub(super) fn delivered(&mut self, version: u64) {
        self.upto = self.upto.max(version);
    }

    /// Whether every event up to this version was delivered, and no list that may contain it is
    /// being delivered.
    pub(super) fn is_past(&self, version: u64) -> bool {
        self.listing.is_none() && version <= self.upto
    }
}
