//! A running operator: a process of its own, as in production.

use std::{
    fmt::Write as _,
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
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
    Samples, TestCluster, eventually,
    program::{NEXT_OPERATOR, OPERATOR, Program},
};

/// Tells the operator under test, and no other, how wrong its clock is.
const CLOCK_OFF_BY: &str = "OPERATOR_UNDER_TEST_CLOCK_OFF_BY";

/// Whether the operator serves admission webhooks, or sees the cluster by watching it only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Webhooks {
    On,
    Off,
}

/// An operator to be.
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
    /// An operator with the defaults, without webhooks. A lease that ends soon makes successors of a crashed one quick.
    pub fn operator(&self) -> OperatorBuilder {
        let number = self.operators.fetch_add(1, Ordering::Relaxed);
        let log = self.plane().dir().join("logs").join(format!("{}-operator-{number}.log", self.namespace()));
        let (kubeconfig, settings) = (self.plane().kubeconfig_path(), Vec::new());
        let builder = OperatorBuilder { kubeconfig, log, settings, environment: Vec::new(), program: &OPERATOR };
        let builder = builder.set("namespace", self.namespace()).set("metrics.port", "0");
        builder.set("controller.leaderElection.leaseDuration", "3s").webhooks(Webhooks::Off)
    }

    /// The same with the permissions of someone else.
    pub fn operator_as(&self, user: &str, groups: &[&str]) -> OperatorBuilder {
        self.operator().with_kubeconfig(&self.plane().kubeconfig_for(user, groups).expect("a kubeconfig"))
    }

    /// The same as a service account of Perennial's namespace, as a pod of the cluster would run it.
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

    /// The same with another kubeconfig.
    pub(crate) fn with_kubeconfig(mut self, text: &str) -> Self {
        self.kubeconfig = self.log.with_extension("kubeconfig");
        fs::write(&self.kubeconfig, text).expect("writing a kubeconfig");
        self
    }

    /// Sets a key of the config file; the last one counts.
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

    /// Without an election: it works at once, whoever held the lease before it.
    pub fn alone(self) -> Self {
        self.set("controller.leaderElection.enabled", "false")
    }

    /// Starts it and waits until it is ready.
    pub async fn start(self) -> Operator {
        let operator = self.start_unready().await;
        operator.wait_until_ready().await;
        operator
    }

    /// Its clock is so many seconds ahead of everybody else's, or behind.
    pub fn clock_off_by(mut self, seconds: i64) -> Self {
        self.environment.push(format!("{CLOCK_OFF_BY}={seconds}"));
        self
    }

    /// One of the next version: its records have a newer format.
    pub fn of_the_next_version(mut self) -> Self {
        self.program = &NEXT_OPERATOR;
        self
    }

    /// A variable in its environment, where there is nothing else.
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push(format!("{name}={value}"));
        self
    }

    /// Starts it and waits for nothing: it may die before it serves anything.
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

    /// Starts it and waits only until it serves its probes.
    pub async fn start_unready(self) -> Operator {
        let mut operator = self.launch();
        let port = eventually("the operator says where it serves", async || {
            if let Some(status) = operator.process.ended() {
                panic!("the operator ended: {status}");
            }
            operator.served_port().ok_or("it does not")
        })
        .await;
        operator.address.set_port(port);
        operator
    }
}

/// An operator. Dropped, it is killed; after a failure its log is in the test's output.
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

    /// What it answers to a GET: the status (0 without an answer) and the body.
    pub fn get(&self, path: &str) -> (u16, String) {
        get(self.address.port(), path).unwrap_or_else(|error| (0, error.to_string()))
    }

    /// Where it serves its metrics and probes.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Where it serves metrics and probes.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn metrics(&self) -> Samples {
        let (status, text) = self.get("/metrics");
        assert_eq!(status, 200, "{text}");
        Samples::new(text)
    }

    /// Until a metric (the sum over all that have these labels) has this value.
    pub async fn wait_for_metric(&self, name: &str, labels: &[(&str, &str)], value: f64) {
        eventually(format!("{name} {labels:?} is {value}"), async || {
            let seen = self.metrics().sum(name, labels);
            if (seen - value).abs() < 1e-9 { Ok(()) } else { Err(seen) }
        })
        .await;
    }

    /// What it has logged, line by line.
    pub fn log(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Until it logs a line that is what is looked for.
    pub async fn wait_for_log(&self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        eventually(format!("a log line: {what}"), async || {
            self.log().into_iter().find(&is_it).ok_or("none of its lines")
        })
        .await
    }

    /// The number of its process.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Resident memory, in bytes.
    pub fn rss(&self) -> u64 {
        memory_of(self.process.pid(), "VmRSS:")
    }

    /// The most that resident memory has ever been, in bytes.
    pub fn peak_rss(&self) -> u64 {
        peak_memory_of(self.process.pid())
    }

    /// How many files and connections it has open.
    pub fn open_files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.process.pid())).map_or(0, Iterator::count)
    }

    /// Processor time so far.
    pub fn cpu(&self) -> Duration {
        cpu_of(self.process.pid())
    }

    pub fn is_running(&mut self) -> bool {
        self.process.ended().is_none()
    }

    /// SIGKILL, as a crash.
    pub fn crash(mut self) {
        self.process.kill();
    }

    /// SIGTERM, as Kubernetes stops it: five seconds, then it is killed and the answer is not a success.
    pub async fn stop(mut self) -> Option<ExitStatus> {
        self.process.signal(Signal::TERM).expect("a running operator");
        let ended = async {
            loop {
                if let Some(status) = self.process.ended() {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(5), ended).await.ok()
    }

    /// SIGSTOP: it does not notice that time goes by.
    pub fn pause(&mut self) {
        self.process.signal(Signal::STOP).expect("a running operator");
    }

    /// SIGCONT, after [`Operator::pause`].
    pub fn resume(&mut self) {
        self.process.signal(Signal::CONT).expect("a running operator");
    }

    fn served_port(&self) -> Option<u16> {
        self.served("serving /metrics").map(|address| address.port())
    }

    /// Where it serves the dashboard, once it says so.
    pub async fn dashboard(&self) -> String {
        let address = eventually("the operator says where the dashboard is", async || {
            self.served("serving the dashboard").ok_or("it does not")
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

/// The processor time of a process so far, in user and kernel; nothing if there is no such process.
pub fn cpu_of(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // After the name, which may have anything in it, the 12th and 13th field are ticks of a hundredth of a second.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace().skip(11).take(2);
    Duration::from_millis(fields.filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>() * 10)
}

/// What whoever serves on this port answers to a GET: the status and the body.
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

/// The most that the resident memory of a process has ever been, in bytes; nothing if there is no such process.
pub fn peak_memory_of(pid: u32) -> u64 {
    memory_of(pid, "VmHWM:")
}

fn memory_of(pid: u32, what: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(what)).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap_or_default() * 1024
}

/// A port that nobody has yet.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("an address").port()
}
