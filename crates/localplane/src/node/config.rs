//! Configuration files of a node: containerd, the pod network and the kubelet.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::{NodeAddress, NodeFolder, PAUSE_IMAGE, Snapshotter, node_name};
use crate::versions::Kubernetes;

/// Everything that the files of a node depend on.
#[derive(Debug)]
pub(crate) struct NodeConfig<'a> {
    pub(crate) number: usize,
    pub(crate) folder: &'a NodeFolder,
    pub(crate) kubernetes: Kubernetes,
    pub(crate) snapshotter: Snapshotter,
    /// Path of the node's cgroup below the root of every hierarchy.
    pub(crate) cgroup: &'a str,
    /// Certificate of the CA that signs the API server's client certificate.
    pub(crate) client_ca: &'a Path,
    /// Folders of the CNI plugins.
    pub(crate) cni_plugins: &'a [PathBuf],
}

impl NodeConfig<'_> {
    /// Writes all files. The identity of the machine is kept.
    pub(crate) fn write(&self) -> io::Result<()> {
        fs::create_dir_all(self.folder.join("cni"))?;
        fs::write(self.containerd_file(), self.containerd())?;
        fs::write(self.folder.join("cni/10-pods.conflist"), self.pod_network())?;
        fs::write(self.kubelet_file(), self.kubelet())?;
        let identity = machine_identity(self.folder.path());
        for (file, text) in [("machine-id", identity.clone()), ("system-uuid", as_uuid(&identity))] {
            let path = self.folder.join(file);
            if !path.exists() {
                fs::write(path, text + "\n")?;
            }
        }
        Ok(())
    }

    pub(crate) fn containerd_file(&self) -> PathBuf {
        self.folder.join("containerd.toml")
    }

    pub(crate) fn kubelet_file(&self) -> PathBuf {
        self.folder.join("kubelet.yaml")
    }

    fn containerd(&self) -> String {
        let folder = self.folder.path().display();
        let plugins: Vec<_> = self.cni_plugins.iter().map(|folder| format!("\"{}\"", folder.display())).collect();
        format!(
            r#"version = 3
root = "{folder}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
  address = "{socket}"

[plugins.'io.containerd.cri.v1.images']
  snapshotter = "{snapshotter}"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{PAUSE_IMAGE}"

[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = [{plugins}]
    conf_dir = "{folder}/cni"

[[plugins.'io.containerd.transfer.v1.local'.unpack_config]]
  platform = "linux/amd64"
  snapshotter = "{snapshotter}"
"#,
            socket = self.folder.socket().display(),
            snapshotter = self.snapshotter.name(),
            plugins = plugins.join(", "),
        )
    }

    fn pod_network(&self) -> String {
        let subnet = NodeAddress::new(self.number).pods();
        serde_json::json!({
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [{
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": true,
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/ipam",
                    "ranges": [[{ "subnet": subnet }]],
                    "routes": [{ "dst": "0.0.0.0/0" }],
                },
            }],
        })
        .to_string()
    }

    fn kubelet(&self) -> String {
        // Images are loaded, never pulled, so there are no credentials to verify.
        let credentials = match self.kubernetes {
            Kubernetes::V1_36 => "imagePullCredentialsVerificationPolicy: NeverVerify\n",
            Kubernetes::V1_30 | Kubernetes::V1_33 | Kubernetes::V1_34 => "",
        };
        // Unknown to kubelets before 1.31, which accept version 1.
        let cgroups = if self.kubernetes == Kubernetes::V1_30 { "" } else { "failCgroupV1: false\n" };
        format!(
            r#"apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {{enabled: false}}
  webhook: {{enabled: true}}
  x509: {{clientCAFile: "{ca}"}}
authorization: {{mode: Webhook}}
address: {address}
healthzPort: 0
cgroupDriver: cgroupfs
cgroupRoot: {cgroup}
cgroupsPerQOS: true
enforceNodeAllocatable: []
{cgroups}failSwapOn: false
containerRuntimeEndpoint: "unix://{socket}"
evictionHard: {{memory.available: "1Mi", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%"}}
imageGCHighThresholdPercent: 100
{credentials}podLogsDir: "{folder}/pod-logs"
resolvConf: ""
makeIPTablesUtilChains: false
nodeStatusUpdateFrequency: 2s
"#,
            ca = self.client_ca.display(),
            address = NodeAddress::new(self.number).node(),
            cgroup = self.cgroup,
            socket = self.folder.socket().display(),
            folder = self.folder.path().display(),
        )
    }

    /// Returns the arguments of the kubelet.
    pub(crate) fn kubelet_args(&self, kubeconfig: &Path) -> Vec<String> {
        let folder = self.folder.path().display();
        vec![
            format!("--config={}", self.kubelet_file().display()),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--root-dir={folder}/kubelet"),
            format!("--cert-dir={folder}/kubelet-pki"),
            format!("--hostname-override={}", node_name(self.number)),
            format!("--node-ip={}", NodeAddress::new(self.number).node()),
        ]
    }
}

/// Returns the machine id of the node in this folder: 32 hexadecimal digits.
fn machine_identity(folder: &Path) -> String {
    let digest = Sha256::digest(folder.as_os_str().as_encoded_bytes());
    let hex: Vec<_> = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    hex.concat()
}

fn as_uuid(hex: &str) -> String {
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| hex.get(range).unwrap_or_default());
    parts.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_is_another_machine() {
        let (first, second) = (machine_identity(Path::new("/a/real-0")), machine_identity(Path::new("/a/real-1")));

        assert_ne!(first, second);
        assert_eq!(first.len(), 32);
        assert_eq!(as_uuid(&first).len(), 36);
    }
}
