//! Everything about placement in a cluster, read once: what commands look at.

use std::fmt::{self, Debug};

use futures::{Stream, StreamExt, TryStreamExt as _, stream::BoxStream};
use jiff::Timestamp;
use kube::{
    Api, Client, Resource,
    api::ListParams,
    runtime::{WatchStreamExt, watcher},
};
use perennial_core::placement::{action::Plan, spec::Spec, view::OwnWrites};
use serde::de::DeserializeOwned;

use super::{
    apply::Error,
    index::{Look, Reading},
    objects::{Deployment, Namespace, Pod, PodDisruptionBudget, ReplicaSet, StatefulSet},
    observe::{MANAGED, Observed, View},
    settings::Configured,
};
use crate::{
    keeper::node::Node,
    runtime::{
        pages::{PAGE, next_token, pages},
        request::Failure,
    },
};

/// The caches of the operator, filled by lists.
#[derive(Debug)]
pub struct RollCall {
    pub configured: Configured,
    pub view: View,
    pub now: Timestamp,
}

/// Something that a watch said, to be taken in.
pub struct Change(Box<TakeIn>);

type TakeIn = dyn FnOnce(&mut View, Reading<'_>) + Send;

impl Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Change")
    }
}

/// What changes from now on; at first everything that there is. With a selector: of such workloads only.
pub fn changes(client: &Client, selector: Option<&str>) -> impl Stream<Item = Change> + use<> {
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

fn watch<K>(client: &Client, labels: Option<&str>) -> BoxStream<'static, Change>
where
    K: Observed + Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let config = watcher::Config::default();
    let config = labels.map_or(config.clone(), |labels| config.labels(labels));
    let events = watcher(Api::<K>::all(client.clone()), config).default_backoff();
    let taken = |event| Change(Box::new(move |view: &mut View, reading: Reading<'_>| drop(view.on(event, reading))));
    events.filter_map(move |event| std::future::ready(event.ok().map(taken))).boxed()
}

fn managed() -> String {
    format!("{MANAGED}=true")
}

impl RollCall {
    /// Reads the cluster. With a selector: of the workloads only such. `on` hears how many objects came.
    pub async fn of(
        client: &Client,
        configured: Configured,
        selector: Option<&str>,
        now: Timestamp,
        mut on: impl FnMut(usize),
    ) -> Result<Self, Error> {
        let mut all = Self { configured, view: View::default(), now };
        all.list::<Namespace>(client, None, &mut on).await?;
        all.list::<Node>(client, None, &mut on).await?;
        all.list::<Deployment>(client, selector, &mut on).await?;
        all.list::<StatefulSet>(client, selector, &mut on).await?;
        all.list::<ReplicaSet>(client, None, &mut on).await?;
        all.list::<PodDisruptionBudget>(client, None, &mut on).await?;
        all.list::<Pod>(client, Some(&managed()), &mut on).await?;
        Ok(all)
    }

    pub fn take_in(&mut self, Change(change): Change) {
        change(&mut self.view, Reading { configured: &self.configured, now: self.now, listed: false });
    }

    async fn list<K>(&mut self, client: &Client, labels: Option<&str>, on: &mut impl FnMut(usize)) -> Result<(), Error>
    where
        K: Observed + Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let api: Api<K> = Api::all(client.clone());
        let mut params = ListParams::default().limit(PAGE);
        params.label_selector = labels.map(ToOwned::to_owned);
        let api = &api;
        let list = |params: ListParams| async move {
            let page = api.list(&params).await.map_err(|error| Error::Read {
                what: K::plural(&()).into_owned(),
                source: Failure::Request(Box::new(error)),
            })?;
            let next = next_token(&page.metadata);
            Ok::<_, Error>((page.items, next))
        };
        let mut pages = std::pin::pin!(pages(params, list));
        while let Some(page) = pages.try_next().await? {
            on(page.len());
            let reading = Reading { configured: &self.configured, now: self.now, listed: true };
            for object in page {
                object.put(&mut self.view, &reading);
            }
        }
        Ok(())
    }

    /// What the operator would decide about a workload now.
    pub fn plan(&self, look: &Look, spec: &Spec) -> Plan {
        look.plan(&self.configured.settings, spec, &OwnWrites::default(), self.now)
    }
}
