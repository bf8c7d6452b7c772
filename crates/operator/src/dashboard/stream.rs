//! What happens, as it happens: server-sent events.
//!
//! `overview`: how everything stands, whenever that changes. `happened`: one thing that happened. Whoever is too slow to
//! hear everything is told so (`missed`) and asks for what was last.

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
use crate::keeper::activity::Happening;

/// Something is said now and then, so that both ends notice when the other is gone.
const ALIVE_EVERY: Duration = Duration::from_secs(10);

struct Listener {
    dashboard: Arc<Dashboard>,
    happenings: broadcast::Receiver<Arc<Happening>>,
    overview: watch::Receiver<Arc<str>>,
    _permit: OwnedSemaphorePermit,
}

pub(super) async fn stream(State(dashboard): State<Arc<Dashboard>>) -> Response {
    let Ok(permit) = Arc::clone(&dashboard.streams).try_acquire_owned() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "Too many look on already.\n").into_response();
    };
    let happenings = dashboard.parts.keeper.cache.activity(|activity| activity.listen());
    let Some(happenings) = happenings else { return StatusCode::NOT_FOUND.into_response() };
    let mut overview = dashboard.overview.subscribe();
    // It is told at once how things stand; what changes afterwards is news.
    overview.mark_changed();
    dashboard.refresh().await;
    let listener = Listener { dashboard, happenings, overview, _permit: permit };
    let events = futures::stream::unfold(listener, |mut listener| async move {
        let event = listener.next().await?;
        Some((Ok::<_, Infallible>(event), listener))
    });
    let alive = KeepAlive::new().interval(ALIVE_EVERY).event(Event::default().event("alive").data("{}"));
    Sse::new(events).keep_alive(alive).into_response()
}

impl Listener {
    /// None: the server stops.
    async fn next(&mut self) -> Option<Event> {
        tokio::select! {
            biased;
            () = self.dashboard.stop.cancelled() => None,
            changed = self.overview.changed() => {
                changed.ok()?;
                let text = Arc::clone(&self.overview.borrow_and_update());
                Some(Event::default().event("overview").data(&*text))
            }
            heard = self.happenings.recv() => match heard {
                Ok(happening) => Event::default().event("happened").json_data(&*happening).ok(),
                Err(broadcast::error::RecvError::Lagged(_)) => Some(Event::default().event("missed").data("{}")),
                Err(broadcast::error::RecvError::Closed) => None,
            },
        }
    }
}
