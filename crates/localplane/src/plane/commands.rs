//! Command line of each component. Everything that differs from the defaults is set here.

use super::{PlaneFolder, spec::Spec};
use crate::{component::Component, node::GATEWAY, pki::Pki, programs::Program};

/// Users of the components, as in production.
pub(super) const CONTROLLER_MANAGER: &str = "system:kube-controller-manager";
pub(super) const SCHEDULER: &str = "system:kube-scheduler";

/// Input of the command lines.
pub(super) struct CommandContext<'a> {
    pub(super) folder: &'a PlaneFolder,
    pub(super) pki: &'a Pki,
    pub(super) spec: &'a Spec,
    pub(super) etcd_url: &'a str,
}

impl CommandContext<'_> {
    pub(super) fn args(&self, component: Component, port: u16) -> Vec<String> {
        let mut args = match component {
            Component::Etcd => self.etcd(),
            Component::ApiServer(_) => self.api_server(port),
            Component::ControllerManager => self.controller_manager(port),
            Component::Scheduler => self.scheduler(port),
            Component::Kwok => self.kwok(port),
            Component::Network
            | Component::Node(_)
            | Component::Containerd(_)
            | Component::Kubelet(_)
            | Component::KubeProxy => Vec::new(),
        };
        let name = component.program().map(Program::file_name).unwrap_or_default();
        args.extend(self.spec.args.get(name).into_iter().flatten().cloned());
        args
    }

    fn etcd(&self) -> Vec<String> {
        let data = self.folder.etcd_data();
        let url = self.etcd_url;
        vec![
            "--name=localplane".into(),
            format!("--data-dir={}", data.display()),
            format!("--listen-client-urls={url}"),
            format!("--advertise-client-urls={url}"),
            // A single member has no peers. Port 0 avoids a fixed port.
            "--listen-peer-urls=http://127.0.0.1:0".into(),
            "--client-cert-auth".into(),
            self.file("--trusted-ca-file", "etcd-ca.crt"),
            self.file("--cert-file", "etcd-server.crt"),
            self.file("--key-file", "etcd-server.key"),
            // The data must survive a crash of the process, not of the machine.
            "--unsafe-no-fsync".into(),
            "--quota-backend-bytes=8589934592".into(),
            "--auto-compaction-retention=5m".into(),
            "--log-level=warn".into(),
        ]
    }

    fn api_server(&self, port: u16) -> Vec<String> {
        let mut args = vec![
            format!("--etcd-servers={}", self.etcd_url),
            self.file("--etcd-cafile", "etcd-ca.crt"),
            self.file("--etcd-certfile", "etcd-client.crt"),
            self.file("--etcd-keyfile", "etcd-client.key"),
            "--bind-address=127.0.0.1".into(),
            "--advertise-address=127.0.0.1".into(),
            format!("--secure-port={port}"),
            self.file("--tls-cert-file", "apiserver.crt"),
            self.file("--tls-private-key-file", "apiserver.key"),
            self.file("--client-ca-file", "ca.crt"),
            self.file("--requestheader-client-ca-file", "front-proxy-ca.crt"),
            "--requestheader-allowed-names=front-proxy-client".into(),
            "--requestheader-username-headers=X-Remote-User".into(),
            "--requestheader-group-headers=X-Remote-Group".into(),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".into(),
            self.file("--proxy-client-cert-file", "front-proxy-client.crt"),
            self.file("--proxy-client-key-file", "front-proxy-client.key"),
            "--service-account-issuer=https://kubernetes.default.svc".into(),
            self.file("--service-account-key-file", "sa.pub"),
            self.file("--service-account-signing-key-file", "sa.key"),
            "--service-cluster-ip-range=10.96.0.0/16".into(),
            "--authorization-mode=Node,RBAC".into(),
            "--enable-admission-plugins=NodeRestriction".into(),
            "--allow-privileged=true".into(),
            // Loopback addresses are not valid endpoints, and no pod uses them.
            "--endpoint-reconciler-type=none".into(),
            "--max-requests-inflight=3000".into(),
            "--max-mutating-requests-inflight=2000".into(),
        ];
        if self.spec.real_nodes > 0 {
            args.extend([
                self.file("--kubelet-client-certificate", "kubelet-client.crt"),
                self.file("--kubelet-client-key", "kubelet-client.key"),
                "--kubelet-preferred-address-types=InternalIP".into(),
                format!("--egress-selector-config-file={}", self.folder.egress_config().display()),
            ]);
            args.extend(if self.spec.kube_proxy {
                // kube-proxy rejects connections to a Service without endpoints, so the Service
                // `kubernetes` needs one. See `Forward`.
                vec![format!("--advertise-address={GATEWAY}"), "--endpoint-reconciler-type=lease".into()]
            } else {
                // Webhooks in pods are reached at their own address.
                vec!["--enable-aggregator-routing=true".into()]
            });
        }
        args
    }

    fn controller_manager(&self, port: u16) -> Vec<String> {
        let mut args = self.kubeconfigs(Component::ControllerManager);
        args.extend([
            "--bind-address=127.0.0.1".into(),
            format!("--secure-port={port}"),
            self.file("--tls-cert-file", "apiserver.crt"),
            self.file("--tls-private-key-file", "apiserver.key"),
            self.file("--root-ca-file", "ca.crt"),
            self.file("--service-account-private-key-file", "sa.key"),
            self.file("--cluster-signing-cert-file", "ca.crt"),
            self.file("--cluster-signing-key-file", "ca.key"),
            "--use-service-account-credentials=true".into(),
            "--leader-elect=false".into(),
            "--kube-api-qps=1000".into(),
            "--kube-api-burst=2000".into(),
        ]);
        args
    }

    fn scheduler(&self, port: u16) -> Vec<String> {
        let mut args = self.kubeconfigs(Component::Scheduler);
        args.extend([
            "--bind-address=127.0.0.1".into(),
            format!("--secure-port={port}"),
            self.file("--tls-cert-file", "apiserver.crt"),
            self.file("--tls-private-key-file", "apiserver.key"),
            "--leader-elect=false".into(),
            "--kube-api-qps=1000".into(),
            "--kube-api-burst=2000".into(),
        ]);
        args
    }

    fn kwok(&self, port: u16) -> Vec<String> {
        // Real nodes have their own kubelet.
        let manage = match self.spec.real_nodes {
            0 => "--manage-all-nodes=true",
            _ => "--manage-nodes-with-label-selector=type=kwok",
        };
        vec![
            format!("--kubeconfig={}", self.kubeconfig(Component::Kwok)),
            format!("--config={}", self.folder.kwok_config().display()),
            format!("--server-address=127.0.0.1:{port}"),
            manage.into(),
            "--node-lease-duration-seconds=40".into(),
            // A pod gets no address if its node has none.
            "--node-ip=10.0.0.1".into(),
            "--cidr=10.244.0.1/16".into(),
        ]
    }

    fn kubeconfigs(&self, component: Component) -> Vec<String> {
        let path = self.kubeconfig(component);
        ["--kubeconfig", "--authentication-kubeconfig", "--authorization-kubeconfig"]
            .map(|flag| format!("{flag}={path}"))
            .to_vec()
    }

    fn kubeconfig(&self, component: Component) -> String {
        self.pki.path(&kubeconfig_file(component)).display().to_string()
    }

    fn file(&self, flag: &str, name: &str) -> String {
        format!("{flag}={}", self.pki.path(name).display())
    }
}

/// Returns the name of a component's kubeconfig in `pki/`.
pub(super) fn kubeconfig_file(component: Component) -> String {
    format!("{component}.kubeconfig")
}
