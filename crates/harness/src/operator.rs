//! Operators under test: each is its own process, as in production.

use std::{
    fmt::Write as _,
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::ExitStatus,
    sync::atomic::Ordering,
    thread,
    time::Duration,
};

use localplane::Process;
use rustix::process::Signal;
use serde_json::Value;

use crate::{
    Metrics, TestCluster,
    binaries::{NEXT_OPERATOR, OPERATOR, Program},
    eventually,
    ports::free_port,
};

/// Environment variable that shifts the clock of the operator under test.
const CLOCK_OFF_BY: &str = "OPERATOR_UNDER_TEST_CLOCK_OFF_BY";

/// Mode of the operator: with admission webhooks, or with watches alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Webhooks {
    On,
    Off,
}

/// Builder of an operator process.
#[derive(Debug)]
#[must_use = "an operator is started by `start`"]
pub struct OperatorBuilder {
    kubeconfig: PathBuf,
    log: PathBuf,
    settings: Vec<(String, String)>,
    environment: Vec<String>,
    program: &'static Program,
}

impl TestCluster {
    /// Operator with default settings and without webhooks. A short Lease lets a replacement of a
    /// crashed operator take over quickly.
    pub fn operator(&self) -> OperatorBuilder {
        let number = self.operators.fetch_add(1, Ordering::Relaxed);
        let log = self.plane().dir().join("logs").join(format!("{}-operator-{number}.log", self.namespace()));
        let kubeconfig = self.operator_user.as_ref().map(|(_, kubeconfig)| kubeconfig.clone());
        let (kubeconfig, settings) = (kubeconfig.unwrap_or_else(|| self.plane().kubeconfig_path()), Vec::new());
        let builder = OperatorBuilder { kubeconfig, log, settings, environment: Vec::new(), program: &OPERATOR };
        let builder = builder.set("namespace", self.namespace()).set("metrics.port", "0");
        builder.set("controller.leaderElection.leaseDuration", "3s").webhooks(Webhooks::Off)
    }

    /// Operator with the permissions of another user.
    pub fn operator_as(&self, user: &str, groups: &[&str]) -> OperatorBuilder {
        self.operator().with_kubeconfig(&self.plane().kubeconfig_for(user, groups).expect("a kubeconfig"))
    }

    /// Operator that runs as a service account of Perennial's namespace, like a pod in the cluster.
    pub fn operator_in_cluster(&self, account: &str) -> OperatorBuilder {
        let text = self.plane().kubeconfig_for_service_account(self.namespace(), account).expect("a kubeconfig");
        let mut builder = self.operator().with_kubeconfig(&text);
        builder.environment.push("KUBERNETES_SERVICE_HOST=127.0.0.1".to_owned());
        builder
    }
}

impl OperatorBuilder {
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Uses another kubeconfig.
    pub(crate) fn with_kubeconfig(mut self, text: &str) -> Self {
        self.kubeconfig = self.log.with_extension("kubeconfig");
        fs::write(&self.kubeconfig, text).expect("writing a kubeconfig");
        self
    }

    /// Sets a configuration key; the last value wins.
    pub fn set(mut self, key: &str, value: &str) -> Self {
        self.settings.retain(|(set, _)| set != key);
        self.settings.push((key.to_owned(), value.to_owned()));
        self
    }

    pub fn webhooks(self, webhooks: Webhooks) -> Self {
        match webhooks {
            Webhooks::Off => self.set("webhook.enabled", "false"),
            Webhooks::On => {
                let port = free_port().to_string();
                let url = format!("https://127.0.0.1:{port}");
                self.set("webhook.enabled", "true").set("webhook.port", &port).set("webhook.url", &url)
            }
        }
    }

    /// Turns leader election off: the operator acts at once, whether or not a Lease is held.
    pub fn without_leader_election(self) -> Self {
        self.set("controller.leaderElection.enabled", "false")
    }

    /// Starts the operator and waits until it is ready.
    pub async fn start(self) -> Operator {
        let operator = self.start_unready().await;
        operator.wait_until_ready().await;
        operator
    }

    /// Shifts the operator's clock by this number of seconds.
    pub fn clock_off_by(mut self, seconds: i64) -> Self {
        self.environment.push(format!("{CLOCK_OFF_BY}={seconds}"));
        self
    }

    /// Uses the operator of the next version, whose records have a newer format.
    pub fn next_version(mut self) -> Self {
        self.program = &NEXT_OPERATOR;
        self
    }

    /// Sets an environment variable. The environment is empty otherwise.
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push(format!("{name}={value}"));
        self
    }

    /// Starts the operator without waiting; it may exit before it serves.
    pub fn launch(self) -> Operator {
        let mut args = vec!["-i".to_owned(), "RUST_BACKTRACE=1".to_owned()];
        args.extend(self.environment);
        args.push(self.program.path().display().to_string());
        args.extend(["run".to_owned(), "--kubeconfig".to_owned(), self.kubeconfig.display().to_string()]);
        for (key, value) in &self.settings {
            args.extend(["--set".to_owned(), format!("{key}={value}")]);
        }
        let process = Process::start("env".as_ref(), &args, &self.log).expect("the operator starts");
        Operator { process, log: self.log, address: SocketAddr::from(([127, 0, 0, 1], 0)) }
    }

    /// Starts the operator and waits until it serves its probes.
    pub async fn start_unready(self) -> Operator {
        let mut operator = self.launch();
        let port = eventually("the operator logs its address", async || {
            if let Some(status) = operator.process.ended() {
                panic!("the operator ended: {status}");
            }
            operator.served_port().ok_or("not yet")
        })
        .await;
        operator.address.set_port(port);
        operator
    }
}

/// A running operator. Killed on drop; if the test fails, its log is printed.
#[derive(Debug)]
pub struct Operator {
    process: Process,
    log: PathBuf,
    address: SocketAddr,
}

impl Operator {
    pub async fn wait_until_ready(&self) {
        eventually("the operator is ready", async || {
            let answer = self.get("/readyz");
            if answer.0 == 200 { Ok(()) } else { Err(format!("{} {}", answer.0, answer.1)) }
        })
        .await;
    }

    /// Sends a GET request. Returns status (0 without a response) and body.
    pub fn get(&self, path: &str) -> (u16, String) {
        get(self.address.port(), path).unwrap_or_else(|error| (0, error.to_string()))
    }

    /// Port of metrics and probes.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Address of metrics and probes.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn metrics(&self) -> Metrics {
        let (status, text) = self.get("/metrics");
        assert_eq!(status, 200, "{text}");
        Metrics::new(text)
    }

    /// Waits until a metric, summed over all series with these labels, has this value.
    pub async fn wait_for_metric(&self, name: &str, labels: &[(&str, &str)], value: f64) {
        eventually(format!("{name} {labels:?} is {value}"), async || {
            let seen = self.metrics().sum(name, labels);
            if (seen - value).abs() < 1e-9 { Ok(()) } else { Err(seen) }
        })
        .await;
    }

    /// Returns its log, one JSON object per line.
    pub fn log(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits for a matching log line and returns it.
    pub async fn wait_for_log(&self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        eventually(format!("a log line: {what}"), async || {
            self.log().into_iter().find(&is_it).ok_or("none of its lines")
        })
        .await
    }

    /// Process ID.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Resident memory in bytes.
    pub fn rss(&self) -> u64 {
        memory_of(self.process.pid(), "VmRSS:")
    }

    /// Peak resident memory in bytes.
    pub fn peak_rss(&self) -> u64 {
        peak_memory_of(self.process.pid())
    }

    /// Number of open file descriptors.
    pub fn open_files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.process.pid())).map_or(0, Iterator::count)
    }

    /// Processor time used so far.
    pub fn cpu(&self) -> Duration {
        cpu_of(self.process.pid())
    }

    pub fn is_running(&mut self) -> bool {
        self.process.ended().is_none()
    }

    /// Sends SIGKILL.
    pub fn crash(mut self) {
        self.process.kill();
    }

    /// Sends SIGTERM and waits up to five seconds. Returns `None` if the operator did not exit in
    /// time.
    pub async fn stop(self) -> Option<ExitStatus> {
        self.stop_within(Duration::from_secs(5)).await
    }

    /// Sends SIGTERM. Returns `None` if the operator did not exit in time.
    pub async fn stop_within(mut self, deadline: Duration) -> Option<ExitStatus> {
        self.process.signal(Signal::TERM).expect("a running operator");
        let ended = async {
            loop {
                if let Some(status) = self.process.ended() {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(deadline, ended).await.ok()
    }

    /// Sends SIGSTOP.
    pub fn pause(&mut self) {
        self.process.signal(Signal::STOP).expect("a running operator");
    }

    /// Sends SIGCONT, after [`Operator::pause`].
    pub fn resume(&mut self) {
        self.process.signal(Signal::CONT).expect("a running operator");
    }

    fn served_port(&self) -> Option<u16> {
        self.served("serving /metrics").map(|address| address.port())
    }

    /// Waits until the dashboard is served and returns its URL.
    pub async fn dashboard(&self) -> String {
        let address = eventually("the operator logs the address of the dashboard", async || {
            self.served("serving the dashboard").ok_or("not yet")
        });
        format!("http://{}/", address.await)
    }

    fn served(&self, what: &str) -> Option<SocketAddr> {
        let is_it = |line: &Value| line["message"].as_str().is_some_and(|message| message.starts_with(what));
        self.log().into_iter().find(is_it)?["address"].as_str()?.parse().ok()
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.process.kill();
        if thread::panicking() {
            let text = fs::read_to_string(&self.log).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let skipped = lines.len().saturating_sub(100);
            let mut shown = format!("--- the operator's log, {} ({skipped} lines before these)\n", self.log.display());
            for line in &lines[skipped..] {
                let _ = writeln!(shown, "{line}");
            }
            eprintln!("{shown}---");
        }
    }
}

/// Returns the user and kernel time of a process; zero if it does not exist.
pub fn cpu_of(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The process name may contain any character. Fields 12 and 13 after it are ticks of 10 ms.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace().skip(11).take(2);
    Duration::from_millis(fields.filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>() * 10)
}

/// Sends a GET request to a local port. Returns status and body.
pub(crate) fn get(port: u16, path: &str) -> std::io::Result<(u16, String)> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok()).unwrap_or_default();
    Ok((status, body.to_owned()))
}

/// Returns the peak resident memory of a process in bytes; 0 if it does not exist.
pub fn peak_memory_of(pid: u32) -> u64 {
    memory_of(pid, "VmHWM:")
}

fn memory_of(pid: u32, what: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap_or_default() * 1024
}
