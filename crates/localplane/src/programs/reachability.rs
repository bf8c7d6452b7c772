//! Checks which download hosts are reachable, once per process and for all hosts in parallel.
//!
//! An unreachable network must cost little time: all hosts share one short deadline, and an
//! unreachable host is not tried again in this process.

use std::{
    collections::HashMap,
    env,
    net::{TcpStream, ToSocketAddrs},
    sync::{Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use ureq::http::Uri;

/// Time for all hosts together to accept a connection.
const TIMEOUT: Duration = Duration::from_millis(1500);

/// Error of each `host:port` that was checked; `None` if it is reachable.
static CHECKED: Mutex<Option<HashMap<String, Option<String>>>> = Mutex::new(None);

/// Returns why the host of this address is unreachable, if it is. Call [`probe`] for all addresses
/// first.
pub(super) fn unreachable(address: &str) -> Option<String> {
    let authority = authority(address)?;
    with_checked(|checked| checked.get(&authority).cloned().flatten())
}

/// Marks a host as unreachable.
pub(super) fn mark_unreachable(address: &str, reason: &str) {
    if let Some(authority) = authority(address) {
        with_checked(|checked| checked.insert(authority, Some(reason.to_owned())));
    }
}

/// Checks the hosts of these addresses that were not checked yet. Takes at most [`TIMEOUT`].
pub(super) fn probe<'a>(addresses: impl IntoIterator<Item = &'a str>) {
    if behind_proxy() {
        // The proxy resolves and connects, so only a request shows whether a host is reachable.
        return;
    }
    let mut unchecked: Vec<String> = addresses.into_iter().filter_map(authority).collect();
    unchecked.sort();
    unchecked.dedup();
    with_checked(|checked| unchecked.retain(|authority| !checked.contains_key(authority)));

    let deadline = Instant::now() + TIMEOUT;
    let (answers, inbox) = mpsc::channel();
    for authority in unchecked.clone() {
        let answers = answers.clone();
        // Not joined: a resolver may hang for longer than the deadline.
        thread::spawn(move || {
            let result = connect(&authority, deadline);
            let _ = answers.send((authority, result));
        });
    }
    drop(answers);
    while let Ok((authority, result)) = inbox.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        unchecked.retain(|other| *other != authority);
        with_checked(|checked| checked.insert(authority, result.err()));
    }
    for authority in unchecked {
        let why = format!("{authority} did not answer within {} ms", TIMEOUT.as_millis());
        with_checked(|checked| checked.insert(authority, Some(why)));
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

fn with_checked<T>(update: impl FnOnce(&mut HashMap<String, Option<String>>) -> T) -> T {
    let mut checked = CHECKED.lock().unwrap_or_else(PoisonError::into_inner);
    update(checked.get_or_insert_default())
}
