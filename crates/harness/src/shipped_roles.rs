//! Operators with the permissions of the shipped manifests instead of those of an admin.

use kube::{
    Api,
    api::{ApiResource, DynamicObject, PostParams},
};
use perennial::manifests::{Features, Permissions, webhook_configurations};
use serde_json::Value;

use crate::TestCluster;

impl TestCluster {
    /// Gives the operators of this cluster, also those behind a proxy, the shipped permissions and
    /// no others. They may also delete the webhook configurations, which only the manifests without
    /// webhooks permit: one cluster has operators with and without.
    pub async fn with_shipped_roles(mut self) -> Self {
        let mut permissions = Permissions::of(Features::ALL);
        permissions.cluster.extend(Permissions::no_webhooks().cluster);
        let account = self.namespace().to_owned();
        for object in permissions.objects(&account, self.namespace()).into_iter().chain(webhook_configurations()) {
            self.create_object(object).await;
        }
        let user = format!("system:serviceaccount:{}:{account}", self.namespace());
        let kubeconfig = self.plane().dir().join(format!("{account}-operator.kubeconfig"));
        let text = self.plane().kubeconfig_for(&user, &[]).expect("a kubeconfig");
        std::fs::write(&kubeconfig, text).expect("writing a kubeconfig");
        self.operator_user = Some((user, kubeconfig));
        self
    }

    async fn create_object(&self, object: Value) {
        let object: DynamicObject = serde_json::from_value(object).expect("an object");
        let types = object.types.clone().expect("an object with a kind");
        let (group, version) = types.api_version.split_once('/').expect("an object of a group");
        let plural = format!("{}s", types.kind.to_lowercase());
        let resource = ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: types.api_version.clone(),
            kind: types.kind.clone(),
            plural,
        };
        let api: Api<DynamicObject> = match &object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(self.client(), namespace, &resource),
            None => Api::all_with(self.client(), &resource),
        };
        api.create(&PostParams::default(), &object).await.expect("creating a role");
    }
}
