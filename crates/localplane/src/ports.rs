//! Free ports that stay ours.
//!
//! Ports come from below the range that the kernel hands to outgoing connections. A client that keeps calling a stopped
//! server on a port of that range would sooner or later be given the very port it calls, and connect to itself; then the
//! server can never come back. A lock per port keeps other planes away while a component is stopped.

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

/// A port that no other plane takes as long as this value lives.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    /// `None` where the lock could not be made: then only the check at the start protects us.
    _lock: Option<File>,
}

impl Port {
    /// Any free port.
    pub(crate) fn any() -> io::Result<Self> {
        let start = RandomState::new().hash_one(std::process::id());
        (0..u64::from(COUNT))
            .find_map(|step| {
                let offset = u16::try_from(start.wrapping_add(step) % u64::from(COUNT)).ok()?;
                Self::this(FIRST + offset)
            })
            .ok_or_else(|| io::Error::new(io::ErrorKind::AddrInUse, "no port is free from 20000 to 29999"))
    }

    /// This port, if it is free.
    pub(crate) fn this(number: u16) -> Option<Self> {
        let lock = match scratch::home() {
            Ok(home) => {
                let lock = lock_file(&home, number).ok()?;
                lock.try_lock().ok()?;
                Some(lock)
            }
            Err(_) => None,
        };
        // Also taken by those who know nothing of our locks.
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
    use super::*;

    #[test]
    fn a_port_is_given_to_one_only_until_it_is_let_go() {
        let port = Port::any().unwrap();
        let number = port.number();
        assert!(Port::this(number).is_none(), "taken while the first lives, although nobody listens");
        drop(port);
        assert!(Port::this(number).is_some(), "free again");
    }

    #[test]
    fn a_port_that_someone_listens_on_is_not_given() {
        let number = Port::any().unwrap().number();
        let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, number)).unwrap();
        assert!(Port::this(number).is_none());
    }
}
