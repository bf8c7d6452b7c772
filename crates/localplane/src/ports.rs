//! Reserves free ports.
//!
//! Ports are below the ephemeral range. A client that keeps connecting to a stopped server on an
//! ephemeral port would eventually get that port as its own source port and connect to itself, and
//! the server could never start again. A lock per port prevents that another plane takes the port
//! while a component is stopped.

use std::{
    collections::hash_map::RandomState,
    fs::{self, File},
    hash::BuildHasher,
    io,
    net::{Ipv4Addr, TcpListener},
    path::Path,
};

use crate::scratch;

const FIRST: u16 = 20_000;
const COUNT: u16 = 10_000;

/// A port that is reserved until this value is dropped.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    /// `None` if the lock could not be created; then only the check in [`Port::this`] protects the
    /// port.
    _lock: Option<File>,
}

impl Port {
    /// Reserves any free port.
    pub(crate) fn any() -> io::Result<Self> {
        let start = RandomState::new().hash_one(std::process::id());
        (0..u64::from(COUNT))
            .find_map(|step| {
                let offset = u16::try_from(start.wrapping_add(step) % u64::from(COUNT)).ok()?;
                Self::this(FIRST + offset)
            })
            .ok_or_else(|| io::Error::new(io::ErrorKind::AddrInUse, "no free port between 20000 and 29999"))
    }

    /// Reserves this port if it is free.
    pub(crate) fn this(number: u16) -> Option<Self> {
        let lock = match scratch::home() {
            Ok(home) => {
                let lock = lock_file(&home, number).ok()?;
                lock.try_lock().ok()?;
                Some(lock)
            }
            Err(_) => None,
        };
        // Processes other than planes do not use the locks, so check that the port is not in use.
        TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        Some(Self { number, _lock: lock })
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}

fn lock_file(home: &Path, number: u16) -> io::Result<File> {
    let folder = home.join("ports");
    fs::create_dir_all(&folder)?;
    File::options().create(true).append(true).open(folder.join(number.to_string()))
}

#[cfg(test)]
mod tests {
    use std::{
        thread,
        time::{Duration, Instant},
    };

    use super::*;

    #[test]
    fn a_port_is_reserved_until_it_is_dropped() {
        let port = Port::any().unwrap();
        let number = port.number();
        assert!(Port::this(number).is_none(), "reserved although no process listens");
        drop(port);
        // Another test may start a process at this moment. Until its exec, that process has a copy of
        // every open file, the lock included.
        let deadline = Instant::now() + Duration::from_mins(1);
        while Port::this(number).is_none() {
            assert!(Instant::now() < deadline, "still reserved a minute after the drop");
            thread::yield_now();
        }
    }

    #[test]
    fn a_port_in_use_is_not_reserved() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert!(Port::this(listener.local_addr().unwrap().port()).is_none());
    }
}
