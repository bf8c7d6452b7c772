//! Waiting for what is promised.

use std::{fmt::Display, time::Duration};

use tokio::time::{Instant, sleep};

/// Far longer than anything takes: test machines are slow at times, and only a failing test waits that long.
const PATIENCE: Duration = Duration::from_mins(2);
const POLL: Duration = Duration::from_millis(50);

/// Asks until the answer is `Ok`. A test that waits in vain fails with what was seen last.
pub async fn eventually<T, E: Display>(what: impl Display, check: impl AsyncFnMut() -> Result<T, E>) -> T {
    eventually_within(PATIENCE, what, check).await
}

/// The same with a patience of its own, for what takes long by nature.
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
            Err(seen) if Instant::now() > deadline => panic!("waited in vain: {what}; seen last: {seen}"),
            // A question that is expensive is asked less often, so that it does not slow down what it waits for.
            Err(_) => sleep(POLL.max(asked.elapsed() * 2)).await,
        }
    }
}
