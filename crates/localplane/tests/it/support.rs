//! Test helpers.

use std::{
    collections::HashMap,
    fs,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use localplane::Plane;

/// A folder that is removed after a successful test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("localplane-test-{}-{number}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes an executable script into this folder.
    pub(crate) fn script(&self, name: &str, text: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = self.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !thread::panicking() {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

/// Returns the `localplane` program.
pub(crate) fn localplane() -> Command {
    Command::new(env!("CARGO_BIN_EXE_localplane"))
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a command that must succeed and returns its stdout.
pub(crate) fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, text(&output.stderr));
    text(&output.stdout)
}

/// Runs `kubectl` as the admin of this plane.
pub(crate) fn kubectl(plane: &Plane, args: &[&str]) -> Output {
    plane.kubectl().args(args).output().unwrap()
}

pub(crate) fn kubectl_ok(plane: &Plane, args: &[&str]) -> String {
    succeed(plane.kubectl().args(args))
}

/// Polls until `check` succeeds. Panics with the last error after a timeout that suffices for a
/// busy machine.
pub(crate) fn eventually<T>(what: &str, mut check: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        match check() {
            Ok(value) => return value,
            Err(reason) if Instant::now() > deadline => panic!("{what}: {reason}"),
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Notes that a test is skipped. `make test` counts the reasons in the file `$SKIPPED_TESTS`.
pub(crate) fn skip(reason: &str, why: &str) {
    eprintln!("SKIPPED: {reason}: {why}");
    let Some(file) = std::env::var_os("SKIPPED_TESTS") else { return };
    let test = thread::current().name().unwrap_or("a test").to_owned();
    let mut file = fs::File::options().create(true).append(true).open(file).unwrap();
    file.write_all(format!("{test}\t{reason}\n").as_bytes()).unwrap();
}

/// Reports whether a process exists and is not a zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('Z')))
}

/// Response of the test server to a path.
#[derive(Clone)]
pub(crate) enum Reply {
    Body(Vec<u8>),
    /// Announces the full length and closes the connection after this number of bytes.
    Cut(Vec<u8>, usize),
}

/// An HTTP server on loopback that records requested paths.
pub(crate) struct Server {
    pub(crate) url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub(crate) fn start(replies: impl IntoIterator<Item = (String, Reply)>) -> Self {
        let replies: HashMap<_, _> = replies.into_iter().collect();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = requests.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                serve(stream, &replies, &log);
            }
        });
        Self { url, requests }
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

fn serve(mut stream: TcpStream, replies: &HashMap<String, Reply>, log: &Mutex<Vec<String>>) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    // A connection without a request is a reachability check.
    let Some(request) = lines.next() else { return };
    let _headers = lines.take_while(|line| !line.is_empty()).count();
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    log.lock().unwrap().push(path.clone());
    let head = |status: &str, length: usize| {
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n").into_bytes()
    };
    let answer = match replies.get(&path) {
        Some(Reply::Body(body)) => [head("200 OK", body.len()), body.clone()].concat(),
        Some(Reply::Cut(body, sent)) => [head("200 OK", body.len()), body[..*sent].to_vec()].concat(),
        None => head("404 Not Found", 0),
    };
    let _ = stream.write_all(&answer);
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    let hex: Vec<_> = sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    hex.concat()
}
