//! Polling with a deadline.

use std::{fmt::Display, time::Duration};

use tokio::time::{Instant, sleep};

/// Much longer than any wait needs. Test machines are slow at times, and only a failing test waits
/// this long.
const PATIENCE: Duration = Duration::from_mins(2);
const POLL: Duration = Duration::from_millis(50);

/// Polls until `check` returns `Ok`. After two minutes the test fails with the last error.
pub async fn eventually<T, E: Display>(what: impl Display, check: impl AsyncFnMut() -> Result<T, E>) -> T {
    eventually_within(PATIENCE, what, check).await
}

/// Like [`eventually`] with another deadline.
pub async fn eventually_within<T, E: Display>(
    patience: Duration,
    what: impl Display,
    mut check: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let deadline = Instant::now() + patience;
    loop {
        let asked = Instant::now();
        match check().await {
            Ok(value) => return value,
            Err(seen) if Instant::now() > deadline => panic!("timed out waiting until {what}; last observed: {seen}"),
            // An expensive check runs less often, so that it does not slow down what it waits for.
            Err(_) => sleep(POLL.max(asked.elapsed() * 2)).await,
        }
    }
}
