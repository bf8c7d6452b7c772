//! Certificates from a mounted Secret, as cert-manager writes it and kubelets update it: at a
//! different time on every node.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::symlink,
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::{Api, api::PostParams};
use perennial::admission::{certificates::SECRET, configuration::NAME, issue};
use perennial_core::certs::{Certificates, Lifetimes};
use perennial_harness::{LoadBalancer, TestCluster, eventually, eventually_within, handshake};

const PATIENCE: Duration = Duration::from_mins(1);

/// A mounted Secret: links into a folder that is replaced as a whole.
struct Mount {
    path: PathBuf,
    number: usize,
}

impl Mount {
    fn new(cluster: &TestCluster, name: &str, made: &Certificates) -> Self {
        let path = cluster.plane().dir().join(format!("{}-{name}", cluster.namespace()));
        fs::create_dir_all(&path).unwrap();
        for file in ["tls.crt", "tls.key", "ca.crt"] {
            symlink(format!("..data/{file}"), path.join(file)).unwrap();
        }
        let mut mount = Self { path, number: 0 };
        mount.put(made);
        mount
    }

    fn put(&mut self, made: &Certificates) {
        let name = |number| format!("..2026_01_01_00_00_00.{number}");
        let folder = self.path.join(name(self.number + 1));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("tls.crt"), &made.serving.certificate).unwrap();
        fs::write(folder.join("tls.key"), &made.serving.key).unwrap();
        fs::write(folder.join("ca.crt"), made.bundle()).unwrap();
        symlink(name(self.number + 1), self.path.join("..data_tmp")).unwrap();
        fs::rename(self.path.join("..data_tmp"), self.path.join("..data")).unwrap();
        let _ = fs::remove_dir_all(self.path.join(name(self.number)));
        self.number += 1;
    }
}

/// Issues a certificate with its own CA, like a self-signed issuer does at every renewal.
fn certificates() -> Certificates {
    let now = jiff::Timestamp::now().as_second();
    issue::create(&["127.0.0.1".to_owned()], &Lifetimes::default(), now).unwrap()
}

async fn trusted(cluster: &TestCluster) -> String {
    let api: Api<MutatingWebhookConfiguration> = Api::all(cluster.client());
    let hooks = api.get(NAME).await.unwrap().webhooks.unwrap_or_default();
    let bundles = hooks.into_iter().map(|hook| String::from_utf8(hook.client_config.ca_bundle.unwrap().0).unwrap());
    let bundles: BTreeSet<String> = bundles.collect();
    bundles.into_iter().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_renewed_secret_is_served_and_no_request_is_lost() {
    let cluster = TestCluster::new().await;
    let balancer = LoadBalancer::of(2).await;
    let (old, new) = (certificates(), certificates());
    let mut mounts = [Mount::new(&cluster, "one", &old), Mount::new(&cluster, "other", &old)];
    let replica = |number: usize| {
        let folder = mounts[number].path.display().to_string();
        // A lost request fails, so that the test detects it.
        balancer.operator(&cluster, number).set("webhook.certDir", &folder).set("webhook.failurePolicy", "Fail")
    };
    let _replicas = [replica(0).start().await, replica(1).start().await];
    let create = async || {
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let node = cluster.node("n1").into_node();
        let answer = cluster.nodes().create(&dry, &node).await.map_err(|error| error.to_string())?;
        let given = answer.metadata.labels.unwrap_or_default().contains_key("team");
        if given { Ok(()) } else { Err("it passed without its labels".to_owned()) }
    };
    eventually("a node is admitted", async || {
        let node = cluster.node("n1").label("team", "ml");
        node.try_create().await.map(|_| ()).map_err(|error| error.to_string())
    })
    .await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    cluster.delete_node("n1").await;
    eventually("labels ride in the create", create).await;
    assert_eq!(trusted(&cluster).await, old.bundle());

    let requests = AtomicUsize::new(0);
    let load = async {
        loop {
            create().await.unwrap_or_else(|error| panic!("a request was lost: {error}"));
            // A new connection reaches either of them.
            let (url, bundle) = (balancer.url(), trusted(&cluster).await);
            let shaken = tokio::task::spawn_blocking(move || handshake(&url, bundle.as_bytes())).await.unwrap();
            shaken.unwrap_or_else(|error| panic!("what is served is not trusted: {error}"));
            requests.fetch_add(1, Ordering::Relaxed);
        }
    };
    let served = async |made: &Certificates, times: usize| {
        let (url, bundle) = (balancer.url(), made.bundle());
        let all = move || (0..times).try_for_each(|_| handshake(&url, bundle.as_bytes()));
        tokio::task::spawn_blocking(all).await.unwrap()
    };
    let renewal = async {
        mounts[0].put(&new);
        eventually_within(PATIENCE, "one of them serves the new one", async || served(&new, 1).await).await;
        eventually_within(PATIENCE, "the other one serves the old one", async || served(&old, 1).await).await;
        let both = trusted(&cluster).await;
        assert!(both.contains(new.bundle().trim()) && both.contains(old.bundle().trim()), "{both}");
        mounts[1].put(&new);
        eventually_within(PATIENCE, "both serve the new one", async || served(&new, 8).await).await;
    };
    tokio::select! {
        () = load => unreachable!(),
        () = renewal => {}
    }

    assert!(requests.into_inner() > 20, "too little load to tell");
    let secrets = cluster.kubectl(&format!("get secrets -n {} -o name", cluster.namespace()));
    assert!(!secrets.contains(SECRET), "{secrets}");
}
