//! Windows of long lists: a browser receives only the rows on its screen.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError},
    time::Duration,
};

use perennial_core::config::LabelSelector;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Dashboard,
    freshness::Stale,
    row::{Column, RowFigures, Sort},
    workload,
};
use crate::keeper::cache::Row;

/// Maximum number of rows in a response.
const MAX_ROWS: usize = 500;
/// Minimum time between two sorts of the whole list.
const FRESH_FOR: Duration = Duration::from_millis(500);

/// Filter and window of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ListQuery {
    /// Words that the name must contain.
    q: String,
    state: String,
    /// Name of a policy.
    policy: String,
    /// `true`: only nodes whose record is held.
    hold: String,
    /// Label selector, as for `kubectl -l`.
    l: String,
    /// Column to sort by, with `-` before it for the reverse order.
    sort: String,
    from: usize,
    count: usize,
}

impl ListQuery {
    fn words(&self) -> Vec<String> {
        self.q.split_whitespace().map(str::to_ascii_lowercase).collect()
    }

    /// Returns the number of matches, the number of rows in each state, and the window.
    fn window<'a, T, S: Copy + Ord + std::fmt::Display>(
        &self,
        all: &'a [T],
        name: impl Fn(&T) -> &str,
        state: impl Fn(&T) -> S,
    ) -> (usize, BTreeMap<S, usize>, Vec<&'a T>) {
        let (words, mut states, mut matched) = (self.words(), BTreeMap::new(), 0);
        let mut window = Vec::new();
        let until = self.from.saturating_add(self.count.min(MAX_ROWS));
        for item in all.iter().filter(|item| has_all(&words, name(item))) {
            let state = state(item);
            *states.entry(state).or_default() += 1;
            if self.state.is_empty() || self.state == state.to_string() {
                if (self.from..until).contains(&matched) {
                    window.push(item);
                }
                matched += 1;
            }
        }
        (matched, states, window)
    }
}

fn has_all(words: &[String], name: &str) -> bool {
    let name = if words.is_empty() { String::new() } else { name.to_ascii_lowercase() };
    words.iter().all(|word| name.contains(word.as_str()))
}

/// The sorted list, valid until something changes.
#[derive(Debug, Default)]
pub(super) struct CachedRows {
    cached: Option<(u64, Instant, Arc<Vec<Row>>)>,
}

impl Dashboard {
    pub(super) fn rows(&self) -> Arc<Vec<Row>> {
        let mut memo = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let cache = self.parts.keeper.cache();
        let version = cache.activity(|activity| activity.version()).unwrap_or_default();
        if let Some((cached_version, at, rows)) = &memo.cached
            && (*cached_version == version || at.elapsed() < FRESH_FOR)
        {
            return Arc::clone(rows);
        }
        let mut rows = cache.rows();
        rows.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let rows = Arc::new(rows);
        memo.cached = Some((version, Instant::now(), Arc::clone(&rows)));
        rows
    }

    /// Returns a window of the list of nodes.
    pub(super) fn nodes(&self, query: &ListQuery, stale: Option<&Stale>) -> Value {
        let rows = self.rows();
        let keeper = &self.parts.keeper;
        let (cache, policies) = (keeper.cache(), keeper.policies().current());
        let (selector, problem) = match LabelSelector::parse(&query.l) {
            Ok(selector) => (selector, None),
            Err(problem) => (LabelSelector::default(), Some(problem)),
        };
        let now = keeper.clock().now();
        let figures =
            |row: &Row| cache.activity(|activity| RowFigures::new(row, activity, &policies)).unwrap_or_default();
        // Without such a filter, only the figures of the window are computed.
        let hold = query.hold == "true";
        let by_figures = hold || !query.policy.is_empty() || !query.l.is_empty();
        let sorts = Sort::parse(&query.sort);
        let mut listed: Vec<(&Row, Option<RowFigures>)> = if by_figures || sorts.by != Column::Name {
            rows.iter()
                .map(|row| (row, figures(row)))
                .filter(|(_, figures)| {
                    (!hold || figures.hold)
                        && (query.policy.is_empty() || figures.policy == query.policy)
                        && (query.l.is_empty() || selector.matches(&figures.labels))
                })
                .map(|(row, figures)| (row, Some(figures)))
                .collect()
        } else {
            rows.iter().map(|row| (row, None)).collect()
        };
        sorts.apply(&mut listed);
        let (matched, states, window) = query.window(&listed, |(row, _)| &row.name, |(row, _)| row.state);
        let items: Vec<Value> = window
            .into_iter()
            .map(|(row, known)| known.clone().unwrap_or_else(|| figures(row)).to_json(row, now))
            .collect();
        let states: BTreeMap<&str, usize> = states.into_iter().map(|(state, count)| (state.as_str(), count)).collect();
        json!({
            "total": rows.len(), "matched": matched, "states": states, "from": query.from, "items": items,
            "policies": keeper.policies().entries().into_keys().collect::<Vec<_>>(), "problem": problem,
            "synced": cache.is_synced(), "stale": stale,
        })
    }

    /// Returns a window of the list of workloads.
    pub(super) fn workloads(&self, query: &ListQuery, stale: Option<&Stale>) -> Value {
        let rows = workload::rows(self);
        let (matched, states, window) = query.window(&rows, |row| &row.key, |row| row.state);
        let items: Vec<Value> = window.into_iter().map(workload::WorkloadRow::to_json).collect();
        json!({
            "total": rows.len(), "matched": matched, "states": states, "from": query.from, "items": items,
            "enabled": self.parts.placer.is_some(),
            "stale": stale,
            "synced": self.parts.placer.as_ref().is_some_and(|placer| placer.is_synced()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_counts_all_matches_and_returns_a_part() {
        let all: Vec<(String, &'static str)> =
            (0..1000).map(|n| (format!("Node-{n:04}"), if n % 10 == 0 { "Away" } else { "Current" })).collect();
        let wanted = |q: &str, state: &str, from, count| {
            ListQuery { q: q.to_owned(), state: state.to_owned(), from, count, ..ListQuery::default() }.window(
                &all,
                |row| &row.0,
                |row| row.1,
            )
        };
        let names = |window: Vec<&(String, &'static str)>| window.iter().map(|row| row.0.clone()).collect::<Vec<_>>();

        let (matched, states, window) = wanted("", "", 998, 10);
        assert_eq!((matched, states["Away"], states["Current"]), (1000, 100, 900));
        assert_eq!(names(window), ["Node-0998", "Node-0999"]);

        let (matched, states, window) = wanted("NODE 12", "Away", 0, 2);
        assert_eq!((matched, states["Current"]), (1, 19));
        assert_eq!(names(window), ["Node-0120"]);
        assert_eq!(wanted("", "", 0, usize::MAX).2.len(), MAX_ROWS);
        assert_eq!(wanted("", "", usize::MAX, 5).2.len(), 0);
    }
}
