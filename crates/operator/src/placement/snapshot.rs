//! A cache of placement that is filled by lists, and kept up to date by watches if needed: the
//! input of commands.

use std::{
    fmt::{self, Debug},
    sync::Arc,
};

use futures::{Stream, StreamExt, TryStreamExt as _, stream::BoxStream};
use jiff::Timestamp;
use kube::{
    Api, Client, Resource,
    api::ListParams,
    runtime::{WatchStreamExt, watcher},
};
use perennial_core::placement::workload::Workload;
use serde::de::DeserializeOwned;

use super::{
    apply::PlacementError,
    cache::{MANAGED, PlacementCache, Reading, Watched},
    objects::{Deployment, Namespace, Pod, PodDisruptionBudget, ReplicaSet, StatefulSet},
    settings::Configured,
};
use crate::{
    keeper::node::Node,
    runtime::{
        pages::{PAGE, next_token, pages},
        request::RequestFailure,
        watch::message,
    },
};

/// The cache of the operator at one time.
#[derive(Debug)]
pub struct Snapshot {
    pub configured: Arc<Configured>,
    pub cache: PlacementCache,
    pub now: Timestamp,
}

/// A change that a watch delivered.
pub struct CacheChange(Box<ApplyChange>);

type ApplyChange = dyn FnOnce(&mut PlacementCache, Reading<'_>) + Send;

impl Debug for CacheChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CacheChange")
    }
}

/// Watches the objects of placement: first all of them, then every change, and every failure of a
/// watch as a sentence. `selector` restricts the workloads.
pub fn changes(client: &Client, selector: Option<&str>) -> impl Stream<Item = Result<CacheChange, String>> + use<> {
    futures::stream::select_all([
        watch::<Namespace>(client, None),
        watch::<Node>(client, None),
        watch::<Deployment>(client, selector),
        watch::<StatefulSet>(client, selector),
        watch::<ReplicaSet>(client, None),
        watch::<PodDisruptionBudget>(client, None),
        watch::<Pod>(client, Some(&managed())),
    ])
}

fn watch<K>(client: &Client, labels: Option<&str>) -> BoxStream<'static, Result<CacheChange, String>>
where
    K: Watched + Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let config = watcher::Config::default();
    let config = labels.map_or(config.clone(), |labels| config.labels(labels));
    let events = watcher(Api::<K>::all(client.clone()), config).default_backoff();
    let change = |event| {
        CacheChange(Box::new(move |cache: &mut PlacementCache, reading: Reading<'_>| drop(cache.on(event, reading))))
    };
    let failed = |error| format!("could not watch {}: {}", K::plural(&()), message(&error));
    events.map(move |event| event.map(change).map_err(failed)).boxed()
}

fn managed() -> String {
    format!("{MANAGED}=true")
}

impl Snapshot {
    /// Lists the objects of placement. `selector` restricts the workloads. `on_page` is called with
    /// the number of objects of each page.
    pub async fn read(
        client: &Client,
        configured: Configured,
        selector: Option<&str>,
        now: Timestamp,
        mut on_page: impl FnMut(usize),
    ) -> Result<Self, PlacementError> {
        let mut all = Self { configured: Arc::new(configured), cache: PlacementCache::default(), now };
        all.list::<Namespace>(client, None, &mut on_page).await?;
        all.list::<Node>(client, None, &mut on_page).await?;
        all.cache.detect_schemes(&mut all.configured);
        all.list::<Deployment>(client, selector, &mut on_page).await?;
        all.list::<StatefulSet>(client, selector, &mut on_page).await?;
        all.list::<ReplicaSet>(client, None, &mut on_page).await?;
        all.list::<PodDisruptionBudget>(client, None, &mut on_page).await?;
        all.list::<Pod>(client, Some(&managed()), &mut on_page).await?;
        Ok(all)
    }

    /// Applies a change.
    pub fn apply(&mut self, CacheChange(change): CacheChange) {
        change(&mut self.cache, Reading { configured: &self.configured, now: self.now, listed: false });
        self.cache.detect_schemes(&mut self.configured);
    }

    async fn list<K>(
        &mut self,
        client: &Client,
        labels: Option<&str>,
        on_page: &mut impl FnMut(usize),
    ) -> Result<(), PlacementError>
    where
        K: Watched + Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let api: Api<K> = Api::all(client.clone());
        let mut params = ListParams::default().limit(PAGE);
        params.label_selector = labels.map(ToOwned::to_owned);
        let api = &api;
        let list = |params: ListParams| async move {
            let page = api.list(&params).await.map_err(|error| PlacementError::Read {
                what: K::plural(&()).into_owned(),
                source: RequestFailure::Request(Box::new(error)),
            })?;
            let next = next_token(&page.metadata);
            Ok::<_, PlacementError>((page.items, next))
        };
        let mut pages = std::pin::pin!(pages(params, list));
        while let Some(page) = pages.try_next().await? {
            on_page(page.len());
            let reading = Reading { configured: &self.configured, now: self.now, listed: true };
            for object in page {
                object.put(&mut self.cache, &reading);
            }
        }
        Ok(())
    }

    /// Returns a workload with everything that a decision about it depends on.
    pub fn observe(&self, key: &str) -> Option<Workload> {
        self.cache.observe(key, &self.configured, self.now)
    }
}
