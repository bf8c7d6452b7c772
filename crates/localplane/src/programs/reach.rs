//! Whether a host answers at all, asked once per process and for all hosts at once.
//!
//! A network that says no must cost next to nothing: hosts are tried side by side under one short deadline, and a host that
//! did not answer is not asked again in this run.

use std::{
    collections::HashMap,
    env,
    net::{TcpStream, ToSocketAddrs},
    sync::{Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use ureq::http::Uri;

/// All hosts together get this long to accept a connection.
const PATIENCE: Duration = Duration::from_millis(1500);

/// What is known of each `host:port`: `None` if it answered.
static KNOWN: Mutex<Option<HashMap<String, Option<String>>>> = Mutex::new(None);

/// Why the host of this address cannot be used, if so. [`probe`] all addresses first.
pub(super) fn refused(address: &str) -> Option<String> {
    let authority = authority(address)?;
    with_known(|known| known.get(&authority).cloned().flatten())
}

/// Remembers that a host which answered before does not any more.
pub(super) fn mark_refused(address: &str, why: &str) {
    if let Some(authority) = authority(address) {
        with_known(|known| known.insert(authority, Some(why.to_owned())));
    }
}

/// Tries the hosts of these addresses that are not known yet. Takes as long as the slowest, and at most [`PATIENCE`].
pub(super) fn probe<'a>(addresses: impl IntoIterator<Item = &'a str>) {
    if behind_proxy() {
        // Then the proxy resolves and connects, and only a request can tell.
        return;
    }
    let mut unknown: Vec<String> = addresses.into_iter().filter_map(authority).collect();
    unknown.sort();
    unknown.dedup();
    with_known(|known| unknown.retain(|authority| !known.contains_key(authority)));

    let deadline = Instant::now() + PATIENCE;
    let (answers, inbox) = mpsc::channel();
    for authority in unknown.clone() {
        let answers = answers.clone();
        // Not joined: a resolver may hang for longer than we care to wait.
        thread::spawn(move || {
            let verdict = connect(&authority, deadline);
            let _ = answers.send((authority, verdict));
        });
    }
    drop(answers);
    while let Ok((authority, verdict)) = inbox.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        unknown.retain(|other| *other != authority);
        with_known(|known| known.insert(authority, verdict.err()));
    }
    for authority in unknown {
        let why = format!("{authority} did not answer within {} ms", PATIENCE.as_millis());
        with_known(|known| known.insert(authority, Some(why)));
    }
}

fn connect(authority: &str, deadline: Instant) -> Result<(), String> {
    let mut why = format!("{authority} has no address");
    for address in authority.to_socket_addrs().map_err(|e| format!("{authority} cannot be resolved: {e}"))? {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&address, left) {
            Ok(_) => return Ok(()),
            Err(error) => why = format!("{authority} cannot be reached: {error}"),
        }
    }
    Err(why)
}

fn authority(address: &str) -> Option<String> {
    let uri: Uri = address.parse().ok()?;
    let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("http") { 80 } else { 443 });
    Some(format!("{}:{port}", uri.host()?))
}

fn behind_proxy() -> bool {
    ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"]
        .iter()
        .any(|name| env::var_os(name).is_some_and(|value| !value.is_empty()))
}

fn with_known<T>(act: impl FnOnce(&mut HashMap<String, Option<String>>) -> T) -> T {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    act(known.get_or_insert_default())
}
