//! The real nodes of a plane: starts their processes and waits until they are ready.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{Inner, Plane, PlaneError, commands::kubeconfig_file, ready::is_schedulable};
use crate::{
    component::Component,
    node::{
        self, API_SERVICE, CONNECT_SCRIPT, Cgroups, Forward, GATEWAY, INIT_SCRIPT, MAX_NODES, NETWORK_SCRIPT,
        NetworkNamespace, NodeAddress, NodeConfig, NodeFolder, Snapshotter, Unsupported, node_name,
    },
    pki::{Identity, Pki, write_private},
    process::Process,
    programs::Program,
};

/// Maximum length of the path of a socket, less the ending that containerd adds.
const MAX_SOCKET_PATH: usize = 100;
/// Namespace of containerd in which the kubelet looks for images.
const IMAGE_NAMESPACE: &str = "k8s.io";

/// Script that starts kube-proxy. Without a route, a connection from the network itself to a
/// ClusterIP fails before a rule can change its target.
const SERVICE_ROUTE: &str = "ip route replace 10.96.0.0/16 dev nodes && exec \"$@\"";

/// Parts of the real nodes that are not processes.
#[derive(Debug)]
pub(super) struct RealNodes {
    pub(super) snapshotter: Snapshotter,
    pub(super) cgroups: Cgroups,
    /// `None` while the network is not running.
    pub(super) forward: Option<Forward>,
}

impl RealNodes {
    pub(super) fn prepare(plane: &Path) -> Result<Self, PlaneError> {
        let snapshotter = check(plane)?;
        let cgroups = Cgroups::create().map_err(|error| Unsupported(format!("no cgroup can be created: {error}")))?;
        Ok(Self { snapshotter, cgroups, forward: None })
    }
}

/// Checks whether real nodes can run with their files in this folder.
pub(crate) fn check(plane: &Path) -> Result<Snapshotter, PlaneError> {
    let socket = NodeFolder::new(plane, MAX_NODES).socket();
    if socket.as_os_str().len() > MAX_SOCKET_PATH {
        let reason = format!("the path of a socket, {}, is too long; use a shorter folder", socket.display());
        return Err(Unsupported(reason).into());
    }
    fs::create_dir_all(plane).map_err(PlaneError::file("create", plane))?;
    Ok(node::check(plane)?)
}

/// Issues the certificate with which the API server connects to kubelets, unless it exists.
pub(super) fn ensure_kubelet_client(pki: &Pki) -> Result<(), PlaneError> {
    if pki.path("kubelet-client.key").exists() {
        return Ok(());
    }
    let identity = Identity::new("kube-apiserver-kubelet-client", &["system:masters"]);
    Ok(pki.issue_client("kubelet-client", &identity)?)
}

/// Returns the configuration that makes the API server reach nodes and pods through this process.
pub(super) fn egress_selector(socket: &Path) -> String {
    format!(
        "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n- name: cluster\n  \
         connection:\n    proxyProtocol: HTTPConnect\n    transport:\n      uds:\n        udsName: {}\n",
        socket.display()
    )
}

impl Plane {
    /// Returns the names of the real nodes.
    pub fn real_nodes(&self) -> Vec<String> {
        (0..self.spec.real_nodes).map(node_name).collect()
    }

    /// Loads an image archive (of Docker or OCI) into every real node.
    pub fn load_image(&self, archive: &Path) -> Result<(), PlaneError> {
        let ctr = self.programs.path(Program::Ctr).unwrap_or(Path::new("ctr"));
        self.folder.load_image(ctr, self.spec.real_nodes, archive)
    }

    /// Starts a process of the real nodes. Does not wait.
    pub(super) fn launch_of_node(&self, component: Component, extra_args: &[String]) -> Result<(), PlaneError> {
        let fail = |source| PlaneError::Start { component, source };
        let log = self.folder.log(component);
        let process = match component {
            Component::Node(number) => {
                let folder = self.node_folder(number);
                fs::create_dir_all(folder.path()).map_err(fail)?;
                self.with_config(number, |config| config.write().map_err(fail))?;
                let _ = fs::remove_file(folder.ready_file());
                Process::start_nested(Path::new("unshare"), &self.init_args(number, &folder), &log)
            }
            Component::Containerd(number) => {
                let file = self.with_config(number, |config| Ok(config.containerd_file()))?;
                let args = ["--config".to_owned(), file.display().to_string()];
                Process::start_nested(Path::new("nsenter"), &self.enter_args(component, number, &args)?, &log)
            }
            Component::Kubelet(number) => {
                let kubeconfig = self.kubelet_kubeconfig(number)?;
                let mut args = self.with_config(number, |config| Ok(config.kubelet_args(&kubeconfig)))?;
                args.extend(self.spec.args.get(Program::Kubelet.file_name()).into_iter().flatten().cloned());
                args.extend_from_slice(extra_args);
                Process::start_nested(Path::new("nsenter"), &self.enter_args(component, number, &args)?, &log)
            }
            Component::KubeProxy => {
                let kubeconfig = self.kube_proxy_kubeconfig()?;
                Process::start(Path::new("nsenter"), &self.kube_proxy_args(&kubeconfig, extra_args)?, &log)
            }
            _ => {
                let ready = self.folder.network_ready();
                let _ = fs::remove_file(&ready);
                fs::create_dir_all(ready.parent().unwrap_or(self.dir())).map_err(fail)?;
                let args = ["--net", "--", "sh", "-c", NETWORK_SCRIPT, "sh"].map(str::to_owned).into_iter();
                let given = [API_SERVICE.ip().to_string(), GATEWAY.to_string(), ready.display().to_string()];
                Process::start(Path::new("unshare"), &args.chain(given).collect::<Vec<_>>(), &log)
            }
        };
        self.inner().running.insert(component, process.map_err(fail)?);
        Ok(())
    }

    /// Returns the check of a process of the real nodes: `Err` with the reason why it is not ready.
    pub(super) fn check_of_node(&self, component: Component) -> Result<(), String> {
        match component {
            Component::Node(number) => {
                exists(&self.node_folder(number).ready_file())?;
                self.connect(number)
            }
            Component::Containerd(number) => {
                let archive = self.folder.pause_archive();
                if !archive.exists() {
                    let image = node::pause_image().map_err(|error| error.to_string())?;
                    fs::write(&archive, image).map_err(|error| error.to_string())?;
                }
                let ctr = self.programs.path(Program::Ctr).unwrap_or(Path::new("ctr"));
                import(ctr, &self.node_folder(number), &archive)
            }
            Component::Kubelet(number) => {
                let api = self.folder.admin_api(&self.url(0)).map_err(|error| error.to_string())?;
                let path = format!("/api/v1/nodes/{}", node_name(number));
                let node = api.get(&path).map_err(|error| error.to_string())?;
                is_schedulable(&node, self.spec.controller_manager).then_some(()).ok_or("not Ready".to_owned())
            }
            Component::KubeProxy => {
                let network = self.pid(Component::Network).ok_or("the network is not running")?;
                let output = Command::new("nsenter")
                    .arg(format!("--net=/proc/{network}/ns/net"))
                    .args(["--", "nft", "list", "table", "ip", "kube-proxy"])
                    .stdin(Stdio::null())
                    .output()
                    .map_err(|error| error.to_string())?;
                succeeded(&output)?;
                let rules = String::from_utf8_lossy(&output.stdout);
                let served = rules.contains(&API_SERVICE.ip().to_string());
                served.then_some(()).ok_or("it has no rule for the Service kubernetes yet".to_owned())
            }
            _ => {
                exists(&self.folder.network_ready())?;
                self.start_forward().map_err(|error| error.to_string())?;
                // Links end with the network; nodes that are running need new ones.
                let running = |number: &usize| self.inner().running.contains_key(&Component::Node(*number));
                (0..self.spec.real_nodes).filter(running).try_for_each(|number| self.connect(number))
            }
        }
    }

    fn start_forward(&self) -> std::io::Result<()> {
        let pid = self.pid(Component::Network).ok_or(std::io::ErrorKind::NotFound)?;
        let network = NetworkNamespace::of(pid)?;
        let port = self.port(Component::ApiServer(0)).unwrap_or_default();
        let previous = self.inner().real_nodes.as_mut().and_then(|nodes| nodes.forward.take());
        drop(previous);
        let forward = Forward::start(&network, port, &self.folder.egress_socket())?;
        if let Some(nodes) = &mut self.inner().real_nodes {
            nodes.forward = Some(forward);
        }
        Ok(())
    }

    /// Connects a node to the network between the nodes.
    fn connect(&self, number: usize) -> Result<(), String> {
        let pid = |component| self.pid(component).ok_or_else(|| format!("{component} is not running"));
        let address = NodeAddress::new(number);
        let output = Command::new("sh")
            .args(["-c", CONNECT_SCRIPT, "sh"])
            .args([pid(Component::Network)?.to_string(), pid(Component::Node(number))?.to_string()])
            .args([node_name(number), address.node().to_string(), address.pods(), GATEWAY.to_string()])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| error.to_string())?;
        succeeded(&output)
    }

    fn node_folder(&self, number: usize) -> NodeFolder {
        NodeFolder::new(self.dir(), number)
    }

    fn with_config<T>(
        &self,
        number: usize,
        act: impl FnOnce(&NodeConfig<'_>) -> Result<T, PlaneError>,
    ) -> Result<T, PlaneError> {
        let inner = self.inner();
        let nodes = inner.real_nodes.as_ref().ok_or(PlaneError::NoComponent(Component::Node(number)))?;
        let cgroup = nodes
            .cgroups
            .node(&node_name(number))
            .map_err(|error| Unsupported(format!("no cgroup can be created: {error}")))?;
        let plugins = [Program::CniBridge, Program::CniHostLocal, Program::CniLoopback];
        act(&NodeConfig {
            number,
            folder: &self.node_folder(number),
            kubernetes: self.spec.kubernetes.parse()?,
            snapshotter: nodes.snapshotter,
            cgroup: &cgroup,
            client_ca: &self.pki.path("ca.crt"),
            cni_plugins: &self.program_folders(&plugins),
        })
    }

    /// Returns the folders of these programs.
    fn program_folders(&self, programs: &[Program]) -> Vec<PathBuf> {
        let mut folders: Vec<_> =
            programs.iter().filter_map(|program| Some(self.programs.path(*program)?.parent()?.to_owned())).collect();
        folders.dedup();
        folders
    }

    fn init_args(&self, number: usize, folder: &NodeFolder) -> Vec<String> {
        let namespaces = ["--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"];
        let mut args: Vec<_> = namespaces.map(str::to_owned).into();
        args.extend(["--", "sh", "-c", INIT_SCRIPT, "sh"].map(str::to_owned));
        args.extend([self.dir().display().to_string(), folder.path().display().to_string(), node_name(number)]);
        args
    }

    /// Returns arguments of `nsenter` that start a component in the namespaces of its node.
    fn enter_args(&self, component: Component, number: usize, args: &[String]) -> Result<Vec<String>, PlaneError> {
        let init = self.pid(Component::Node(number)).ok_or(PlaneError::NoComponent(Component::Node(number)))?;
        let program = component.program().and_then(|program| self.programs.path(program));
        let program = program.ok_or(PlaneError::NoComponent(component))?;
        let needed = [Program::Containerd, Program::ContainerdShim, Program::Ctr, Program::Runc];
        let mut path: Vec<_> =
            self.program_folders(&needed).iter().map(|folder| folder.display().to_string()).collect();
        path.extend(["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(str::to_owned));
        let namespaces = ["--mount", "--net", "--uts", "--ipc", "--pid", "--", "env"];
        let mut all = vec![format!("--target={init}")];
        all.extend(namespaces.map(str::to_owned));
        all.extend([format!("PATH={}", path.join(":")), program.display().to_string()]);
        all.extend_from_slice(args);
        Ok(all)
    }

    /// Returns arguments of `nsenter` that start kube-proxy in the network between the nodes: all
    /// connections that leave a node pass there.
    fn kube_proxy_args(&self, kubeconfig: &Path, extra_args: &[String]) -> Result<Vec<String>, PlaneError> {
        let component = Component::KubeProxy;
        let network = self.pid(Component::Network).ok_or(PlaneError::NoComponent(Component::Network))?;
        let program = self.programs.path(Program::KubeProxy).ok_or(PlaneError::NoComponent(component))?;
        let mut args = vec![format!("--net=/proc/{network}/ns/net")];
        args.extend(["--", "sh", "-c", SERVICE_ROUTE, "sh"].map(str::to_owned));
        args.extend([
            program.display().to_string(),
            format!("--kubeconfig={}", kubeconfig.display()),
            "--proxy-mode=nftables".to_owned(),
            // It reads the Node with this name and ends when that is deleted.
            format!("--hostname-override={}", node_name(self.spec.real_nodes - 1)),
            format!("--bind-address={GATEWAY}"),
            // A response from the node of the client would not pass here otherwise.
            "--masquerade-all=true".to_owned(),
            // Settings of the machine, which are not changed.
            "--conntrack-max-per-core=0".to_owned(),
            "--conntrack-tcp-timeout-established=0s".to_owned(),
            "--conntrack-tcp-timeout-close-wait=0s".to_owned(),
        ]);
        args.extend(self.spec.args.get(Program::KubeProxy.file_name()).into_iter().flatten().cloned());
        args.extend_from_slice(extra_args);
        Ok(args)
    }

    /// Writes the kubeconfig of kube-proxy, unless it exists. The service address is one of the
    /// network itself, so it is reached without rules.
    fn kube_proxy_kubeconfig(&self) -> Result<PathBuf, PlaneError> {
        let path = self.pki.path(&kubeconfig_file(Component::KubeProxy));
        if !path.exists() {
            let url = format!("https://{API_SERVICE}");
            let text = self.folder.kubeconfig_at(&url, &Identity::new("system:kube-proxy", &[]))?;
            write_private(&path, &text).map_err(PlaneError::file("write", &path))?;
        }
        Ok(path)
    }

    /// Writes the kubeconfig of a kubelet, unless it exists.
    fn kubelet_kubeconfig(&self, number: usize) -> Result<PathBuf, PlaneError> {
        let path = self.node_folder(number).join("kubelet.kubeconfig");
        if !path.exists() {
            let url = format!("https://{API_SERVICE}");
            let text = self.folder.kubeconfig_at(&url, &Identity::kubelet(&node_name(number)))?;
            write_private(&path, &text).map_err(PlaneError::file("write", &path))?;
        }
        Ok(path)
    }
}

impl Inner {
    /// Ends everything of the real nodes that is not a process.
    pub(super) fn stop_forward(&mut self) {
        if let Some(nodes) = &mut self.real_nodes {
            nodes.forward = None;
        }
    }
}

impl super::PlaneFolder {
    /// Loads an image archive into the real nodes of the running plane.
    pub(crate) fn load_image(&self, ctr: &Path, nodes: usize, archive: &Path) -> Result<(), PlaneError> {
        (0..nodes).try_for_each(|number| {
            import(ctr, &NodeFolder::new(self.path(), number), archive).map_err(|reason| PlaneError::Image {
                archive: archive.to_owned(),
                node: node_name(number),
                reason,
            })
        })
    }

    pub(super) fn egress_socket(&self) -> PathBuf {
        self.path().join("nodes").join("egress.sock")
    }

    pub(super) fn egress_config(&self) -> PathBuf {
        self.path().join("egress.yaml")
    }

    fn network_ready(&self) -> PathBuf {
        self.path().join("nodes").join("network-ready")
    }

    fn pause_archive(&self) -> PathBuf {
        self.path().join("nodes").join("pause.tar")
    }
}

fn import(ctr: &Path, node: &NodeFolder, archive: &Path) -> Result<(), String> {
    let output = Command::new(ctr)
        .arg("--address")
        .arg(node.socket())
        .args(["--namespace", IMAGE_NAMESPACE, "images", "import"])
        .arg(archive)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{}: {error}", ctr.display()))?;
    succeeded(&output)
}

/// Returns the end of the errors of a command that failed.
fn succeeded(output: &std::process::Output) -> Result<(), String> {
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(errors.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no reason given").to_owned())
}

fn exists(path: &Path) -> Result<(), String> {
    if path.exists() { Ok(()) } else { Err(format!("{} does not exist yet", path.display())) }
}
