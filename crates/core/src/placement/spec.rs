//! What people ask for, read from annotations.
//!
//! Owns the names of the annotations, their defaults and which of two wins. Either the whole of it is understood or none of it is
//! obeyed: every problem is returned at once, and the workload is left alone.

use std::collections::BTreeMap;
use std::fmt;

use jiff::SignedDuration;
use serde::Serialize;

use super::cron::{Cron, Window};
use super::slots::Split;
use super::{PREFERRED, values};

/// How the class of a pod is put to the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Strength {
    /// The pod runs on its class or waits.
    #[default]
    Required,
    /// The scheduler tries; the count is then of what was asked, not of where pods run.
    Preferred,
}

/// How many replicas that belong on spot may run on-demand while spot is short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Budget {
    Count(u32),
    /// Of the spot replicas, rounded up: a budget above nothing allows at least one.
    Percentage(u8),
}

impl Budget {
    pub fn of(self, spot: u32) -> u32 {
        match self {
            Budget::Count(count) => count.min(spot),
            Budget::Percentage(p) => {
                u32::try_from((u64::from(spot) * u64::from(p)).div_ceil(100)).unwrap_or(spot).min(spot)
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    pub split: Split,
    pub fallback_after: SignedDuration,
    pub fallback_budget: Budget,
    /// When running pods may be moved; always, if there is none.
    pub window: Option<Window>,
    /// Running pods are left where they are. New ones are still placed: a pause that let them go anywhere would break the floor.
    pub paused: bool,
    pub strength: Strength,
    /// Evict StatefulSet pods that are in the wrong class.
    pub move_stateful: bool,
}

impl Spec {
    /// A spec with the defaults for all but the split.
    pub fn new(split: Split) -> Self {
        Self {
            split,
            fallback_after: SignedDuration::from_mins(5),
            fallback_budget: Budget::Percentage(100),
            window: None,
            paused: false,
            strength: Strength::Required,
            move_stateful: false,
        }
    }

    /// What is legal and may still surprise.
    pub fn notes(&self, replicas: u32) -> Vec<String> {
        let (percentage, floor) = (self.split.percentage(), self.split.floor());
        let mut notes = Vec::new();
        if percentage > 0 && floor > replicas {
            notes.push(format!("min-on-demand {floor} is above the {replicas} replicas: all of them run on-demand"));
        } else if percentage > 0 && replicas > 0 && self.split.spot(replicas) == 0 {
            notes.push(format!("{percentage}% of {replicas} replicas is less than one: none runs on spot"));
        }
        if percentage == 100 && floor == 0 {
            notes.push("all replicas run on spot: one interruption can take them all (see min-on-demand)".to_owned());
        }
        notes
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    Workload,
    Namespace,
}

/// One annotation that cannot be obeyed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    pub annotation: String,
    pub value: String,
    pub source: Source,
    pub reason: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = match self.source {
            Source::Workload => "",
            Source::Namespace => " (from the namespace)",
        };
        write!(f, "{}: \"{}\" {}{origin}", self.annotation, self.value, self.reason)
    }
}

/// Reads what a workload asks for. `None` when it asks for nothing: it has no `spot-percentage` of its own or from its namespace,
/// or it opted out with `ignore: "true"` or `enabled: "false"`.
///
/// The workload wins over its namespace, an earlier prefix over a later one. Only the winning value is judged, so a workload can
/// repair a bad default of its namespace.
pub fn parse(
    prefixes: &[String],
    namespace: &BTreeMap<String, String>,
    workload: &BTreeMap<String, String>,
) -> Result<Option<Spec>, Vec<Problem>> {
    let mut reader = Reader { prefixes, namespace, workload, problems: Vec::new() };

    let ignored = reader.read("ignore", values::switch) == Some(true);
    let disabled = reader.read("enabled", values::switch) == Some(false);
    if ignored || disabled {
        return Ok(None);
    }
    if reader.find("spot-percentage").is_none() {
        return match reader.find("min-on-demand") {
            Some(found) if found.source == Source::Workload => {
                reader.problem(&found, "needs spot-percentage beside it");
                Err(reader.problems)
            }
            _ => Ok(None),
        };
    }

    let percentage = reader.read("spot-percentage", values::percentage).unwrap_or(0);
    let floor = reader.read("min-on-demand", values::count).unwrap_or(0);
    let mut spec = Spec::new(Split::new(percentage, floor));
    if let Some(after) = reader.read("fallback-after", values::duration) {
        spec.fallback_after = after;
    }
    if let Some(budget) = reader.read("fallback-budget", values::budget) {
        spec.fallback_budget = budget;
    }
    spec.window = reader.window();
    spec.paused = reader.read("paused", values::switch).unwrap_or(false);
    spec.strength = reader.read("selection", strength).unwrap_or_default();
    spec.move_stateful = reader.read("move-statefulset-pods", values::switch).unwrap_or(false);

    if reader.problems.is_empty() { Ok(Some(spec)) } else { Err(reader.problems) }
}

fn strength(text: &str) -> Result<Strength, String> {
    match text {
        "required" => Ok(Strength::Required),
        PREFERRED => Ok(Strength::Preferred),
        _ => Err("is neither \"required\" nor \"preferred\"".to_owned()),
    }
}

struct Found {
    annotation: String,
    value: String,
    source: Source,
}

struct Reader<'a> {
    prefixes: &'a [String],
    namespace: &'a BTreeMap<String, String>,
    workload: &'a BTreeMap<String, String>,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn find(&self, name: &str) -> Option<Found> {
        [(self.workload, Source::Workload), (self.namespace, Source::Namespace)].into_iter().find_map(
            |(from, source)| {
                self.prefixes.iter().find_map(|prefix| {
                    let annotation = format!("{}/{name}", prefix.trim_end_matches('/'));
                    let value = from.get(&annotation)?.trim().to_owned();
                    Some(Found { annotation, value, source })
                })
            },
        )
    }

    fn problem(&mut self, found: &Found, reason: impl Into<String>) {
        let Found { annotation, value, source } = found;
        let (annotation, value) = (annotation.clone(), value.clone());
        self.problems.push(Problem { annotation, value, source: *source, reason: reason.into() });
    }

    fn read<T>(&mut self, name: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let found = self.find(name)?;
        parse(&found.value).map_err(|reason| self.problem(&found, reason)).ok()
    }

    fn window(&mut self) -> Option<Window> {
        let schedule =
            self.read("disruption-schedule", |text| Cron::parse(text).map_err(|e| format!("is not a schedule: {e}")));
        let duration = self.read("disruption-duration", values::duration);
        match (self.find("disruption-schedule"), self.find("disruption-duration")) {
            (Some(found), None) => self.problem(&found, "needs disruption-duration beside it"),
            (None, Some(found)) if found.source == Source::Workload => {
                self.problem(&found, "needs disruption-schedule beside it");
            }
            _ => {}
        }
        Some(Window { schedule: schedule?, duration: duration? })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn read(namespace: &[(&str, &str)], workload: &[(&str, &str)]) -> Result<Option<Spec>, Vec<Problem>> {
        parse(&["perennial.dev".to_owned(), "spotalis.io/".to_owned()], &map(namespace), &map(workload))
    }

    #[test]
    fn a_workload_that_says_nothing_is_not_managed() {
        assert_eq!(read(&[], &[("other.dev/spot-percentage", "70")]), Ok(None));
        assert_eq!(read(&[("perennial.dev/min-on-demand", "2")], &[]), Ok(None));
    }

    #[test]
    fn the_defaults_are_those_of_the_documentation() {
        let spec = read(&[], &[("perennial.dev/spot-percentage", "70%")]).unwrap().unwrap();
        assert_eq!(spec, Spec::new(Split::new(70, 0)));
        assert_eq!(spec.fallback_after, SignedDuration::from_mins(5));
    }

    #[test]
    fn the_workload_wins_over_its_namespace_and_an_earlier_prefix_over_a_later() {
        let namespace = [("perennial.dev/spot-percentage", "abc"), ("spotalis.io/min-on-demand", "2")];
        let workload = [("spotalis.io/spot-percentage", "40"), ("spotalis.io/paused", "true")];
        let spec = read(&namespace, &workload).unwrap().unwrap();
        assert_eq!(spec.split, Split::new(40, 2));
        assert!(spec.paused);
        let both = [("spotalis.io/spot-percentage", "40"), ("perennial.dev/spot-percentage", "60")];
        assert_eq!(read(&[], &both).unwrap().unwrap().split, Split::new(60, 0));
    }

    #[test]
    fn a_workload_can_opt_out_of_its_namespace() {
        let namespace = [("perennial.dev/spot-percentage", "70")];
        assert!(read(&namespace, &[]).unwrap().is_some());
        assert_eq!(read(&namespace, &[("perennial.dev/ignore", "true")]), Ok(None));
        assert_eq!(read(&namespace, &[("spotalis.io/enabled", "false")]), Ok(None));
    }

    #[test]
    fn every_problem_is_told_at_once_with_its_annotation_and_value() {
        let problems = read(
            &[("perennial.dev/fallback-budget", "many")],
            &[
                ("perennial.dev/spot-percentage", "140"),
                ("perennial.dev/min-on-demand", "-1"),
                ("perennial.dev/fallback-after", "soon"),
                ("perennial.dev/disruption-schedule", "61 * * * *"),
                ("perennial.dev/paused", "maybe"),
                ("spotalis.io/selection", "soft"),
                ("perennial.dev/move-statefulset-pods", "1"),
            ],
        )
        .unwrap_err();
        let text: Vec<String> = problems.iter().map(ToString::to_string).collect();
        insta::assert_snapshot!(text.join("\n"), @r#"
        perennial.dev/spot-percentage: "140" is not a whole number from 0 to 100 (a % sign may follow)
        perennial.dev/min-on-demand: "-1" is not a whole number from 0 up
        perennial.dev/fallback-after: "soon" is not a duration such as 90s, 5m or 1h30m
        perennial.dev/fallback-budget: "many" is neither a count of replicas (3) nor a percentage of the spot replicas (20%) (from the namespace)
        perennial.dev/disruption-schedule: "61 * * * *" is not a schedule: the minute `61` is not understood: it must be from 0 to 59
        perennial.dev/disruption-schedule: "61 * * * *" needs disruption-duration beside it
        perennial.dev/paused: "maybe" is neither "true" nor "false"
        spotalis.io/selection: "soft" is neither "required" nor "preferred"
        perennial.dev/move-statefulset-pods: "1" is neither "true" nor "false"
        "#);
    }

    #[rstest]
    #[case("abc")]
    #[case("140")]
    #[case("-1")]
    #[case("70.5%")]
    fn a_bad_percentage_leaves_the_workload_alone(#[case] value: &str) {
        assert_eq!(read(&[], &[("perennial.dev/spot-percentage", value)]).unwrap_err().len(), 1);
    }

    #[test]
    fn a_floor_without_a_percentage_is_a_question_not_an_answer() {
        let problems = read(&[], &[("perennial.dev/min-on-demand", "2")]).unwrap_err();
        assert!(problems[0].to_string().contains("needs spot-percentage"));
    }

    #[test]
    fn a_floor_above_the_replicas_is_legal_and_noted() {
        let spec = read(&[], &[("perennial.dev/spot-percentage", "70"), ("perennial.dev/min-on-demand", "5")]);
        let spec = spec.unwrap().unwrap();
        assert_eq!(spec.split.spot(3), 0);
        assert!(spec.notes(3)[0].contains("min-on-demand 5 is above the 3 replicas"));
        assert!(spec.notes(30).is_empty());
    }

    #[test]
    fn a_budget_is_a_count_or_a_share_of_the_spot_replicas() {
        assert_eq!(Budget::Count(9).of(7), 7);
        assert_eq!(Budget::Percentage(10).of(5), 1);
        assert_eq!(Budget::Percentage(0).of(5), 0);
        assert_eq!(Budget::Percentage(100).of(u32::MAX), u32::MAX);
    }
}
