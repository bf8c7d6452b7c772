//! Everything about placement in a cluster, read once: what commands look at.

use std::fmt::Debug;

use jiff::Timestamp;
use kube::{Api, Client, Resource, api::ListParams};
use perennial_core::placement::{
    action::Plan,
    rebalance::{Input, plan},
    spec::Spec,
    view::OwnWrites,
};
use serde::de::DeserializeOwned;

use super::{
    apply::Error,
    index::{Look, Reading},
    objects::{Deployment, Namespace, Pod, PodDisruptionBudget, ReplicaSet, StatefulSet},
    observe::{MANAGED, Observed, View},
    settings::Configured,
};
use crate::{keeper::node::Node, runtime::request::Failure};

const PAGE: u32 = 500;

/// The caches of the operator, filled by lists.
#[derive(Debug)]
pub struct RollCall {
    pub configured: Configured,
    pub view: View,
    pub now: Timestamp,
}

impl RollCall {
    /// Reads the cluster.
    pub async fn of(client: &Client, configured: Configured, now: Timestamp) -> Result<Self, Error> {
        let mut all = Self { configured, view: View::default(), now };
        all.list::<Namespace>(client, None).await?;
        all.list::<Node>(client, None).await?;
        all.list::<Deployment>(client, None).await?;
        all.list::<StatefulSet>(client, None).await?;
        all.list::<ReplicaSet>(client, None).await?;
        all.list::<PodDisruptionBudget>(client, None).await?;
        all.list::<Pod>(client, Some(&format!("{MANAGED}=true"))).await?;
        Ok(all)
    }

    async fn list<K>(&mut self, client: &Client, labels: Option<&str>) -> Result<(), Error>
    where
        K: Observed + Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let api: Api<K> = Api::all(client.clone());
        let mut params = ListParams::default().limit(PAGE);
        params.label_selector = labels.map(ToOwned::to_owned);
        loop {
            let page = api.list(&params).await.map_err(|error| Error::Read {
                what: K::plural(&()).into_owned(),
                source: Failure::Request(Box::new(error)),
            })?;
            let reading = Reading { configured: &self.configured, now: self.now, listed: true };
            for object in page.items {
                object.put(&mut self.view, &reading);
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => return Ok(()),
            }
        }
    }

    /// What the operator would decide about a workload now.
    pub fn plan(&self, look: &Look, spec: &Spec) -> Plan {
        plan(&Input {
            settings: &self.configured.settings,
            spec,
            workload: &look.workload.view,
            replica_sets: &look.replica_sets,
            pods: &look.pods,
            own: &OwnWrites::default(),
            pdbs: &look.pdbs,
            now: self.now,
        })
    }
}
