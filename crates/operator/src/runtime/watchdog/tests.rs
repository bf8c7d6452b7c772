use super::*;

fn watchdog(variables: &[(&str, &str)]) -> Option<Watchdog> {
    Watchdog::from_variables(|name| {
        variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    })
}

#[test]
fn the_watchdog_is_that_of_this_process() {
    let socket = ("NOTIFY_SOCKET", "/run/systemd/notify");
    let limit = ("WATCHDOG_USEC", "30000000");
    let own = std::process::id().to_string();
    let found = Some(Watchdog { socket: "/run/systemd/notify".into(), limit: Duration::from_secs(30) });

    assert_eq!(watchdog(&[socket, limit]), found);
    assert_eq!(watchdog(&[socket, limit, ("WATCHDOG_PID", &own)]), found);
    assert_eq!(watchdog(&[socket, limit, ("WATCHDOG_PID", "1")]), None);
    for incomplete in [&[socket][..], &[limit], &[socket, ("WATCHDOG_USEC", "0")], &[socket, ("WATCHDOG_USEC", "x")]] {
        assert_eq!(watchdog(incomplete), None, "{incomplete:?}");
    }
}

#[test]
fn a_message_reaches_the_socket() {
    let path = std::env::temp_dir().join(format!("perennial-watchdog-{}", std::process::id()));
    let manager = UnixDatagram::bind(&path).unwrap();

    Watchdog { socket: path.clone(), limit: Duration::from_secs(1) }.send();

    let mut received = [0; 32];
    let length = manager.recv(&mut received).unwrap();
    assert_eq!(&received[..length], ALIVE);
    std::fs::remove_file(path).unwrap();
}
