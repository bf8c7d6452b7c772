//! Updates as server-sent events.
//!
//! `overview`: the overview, when it changes. `happened`: one activity. `missed`: the browser was
//! too slow and must reload.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    extract::State,
    http::StatusCode,
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use tokio::sync::{OwnedSemaphorePermit, broadcast, watch};

use super::Dashboard;
use crate::keeper::activity::ActivityEvent;

/// Time between keep-alive events, by which both ends notice a broken connection.
const ALIVE_EVERY: Duration = Duration::from_secs(10);

struct Subscription {
    dashboard: Arc<Dashboard>,
    happenings: broadcast::Receiver<Arc<ActivityEvent>>,
    overview: watch::Receiver<Arc<str>>,
    _permit: OwnedSemaphorePermit,
}

pub(super) async fn stream(State(dashboard): State<Arc<Dashboard>>) -> Response {
    let Ok(permit) = Arc::clone(&dashboard.streams).try_acquire_owned() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "Too many connections; retry later.\n").into_response();
    };
    let happenings = dashboard.parts.keeper.cache().activity(|activity| activity.listen());
    let Some(happenings) = happenings else { return StatusCode::NOT_FOUND.into_response() };
    let mut overview = dashboard.overview.subscribe();
    // Sends the current overview at once.
    overview.mark_changed();
    dashboard.refresh().await;
    let subscription = Subscription { dashboard, happenings, overview, _permit: permit };
    let events = futures::stream::unfold(subscription, |mut subscription| async move {
        let event = subscription.next().await?;
        Some((Ok::<_, Infallible>(event), subscription))
    });
    let alive = KeepAlive::new().interval(ALIVE_EVERY).event(Event::default().event("alive").data("{}"));
    Sse::new(events).keep_alive(alive).into_response()
}

impl Subscription {
    /// Returns `None` when the server stops.
    async fn next(&mut self) -> Option<Event> {
        tokio::select! {
            biased;
            () = self.dashboard.stop.cancelled() => None,
            changed = self.overview.changed() => {
                changed.ok()?;
                let text = Arc::clone(&self.overview.borrow_and_update());
                Some(Event::default().event("overview").data(&*text))
            }
            received = self.happenings.recv() => match received {
                Ok(happening) => Event::default().event("happened").json_data(&*happening).ok(),
                Err(broadcast::error::RecvError::Lagged(_)) => Some(Event::default().event("missed").data("{}")),
                Err(broadcast::error::RecvError::Closed) => None,
            },
        }
    }
}
