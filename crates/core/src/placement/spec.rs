//! The requested placement of a workload, read from annotations.
//!
//! Owns the names of the annotations, their defaults and their precedence. A workload with an
//! invalid annotation is not managed; all problems are returned at once.

mod values;

use std::collections::BTreeMap;
use std::fmt;

use jiff::SignedDuration;
use serde::Serialize;

use super::PREFERRED;
use super::schedule::{Schedule, Window};
use super::slots::Split;

/// Whether the scheduler must or should respect the class of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Strength {
    /// The pod runs in its class or stays Pending.
    #[default]
    Required,
    /// The scheduler prefers the class. Pods count for the class that they were assigned, not for
    /// their node's.
    Preferred,
}

/// Maximum number of spot replicas that may run on-demand while spot is short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FallbackBudget {
    Count(u32),
    /// Share of the spot replicas, rounded up: a budget above 0 allows at least one.
    Percentage(u8),
}

impl FallbackBudget {
    pub fn of(self, spot: u32) -> u32 {
        match self {
            FallbackBudget::Count(count) => count.min(spot),
            FallbackBudget::Percentage(p) => {
                u32::try_from((u64::from(spot) * u64::from(p)).div_ceil(100)).unwrap_or(spot).min(spot)
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    pub split: Split,
    pub fallback_after: SignedDuration,
    pub fallback_budget: FallbackBudget,
    /// Times at which running pods may be moved. None: always.
    pub window: Option<Window>,
    /// Running pods are not moved. New pods are still placed, because the floor would break
    /// otherwise.
    pub paused: bool,
    pub strength: Strength,
    /// StatefulSet pods in the wrong class are evicted.
    pub move_stateful: bool,
}

impl Spec {
    /// Builds a spec with the defaults for everything except the split.
    pub fn new(split: Split) -> Self {
        Self {
            split,
            fallback_after: SignedDuration::from_mins(5),
            fallback_budget: FallbackBudget::Percentage(100),
            window: None,
            paused: false,
            strength: Strength::Required,
            move_stateful: false,
        }
    }

    /// Returns notes about legal but possibly unintended settings.
    pub fn notes(&self, replicas: u32) -> Vec<String> {
        let (percentage, floor) = (self.split.percentage(), self.split.floor());
        let mut notes = Vec::new();
        if percentage > 0 && floor > replicas {
            notes.push(format!("min-on-demand {floor} is above the {replicas} replicas: all of them run on-demand"));
        } else if percentage > 0 && replicas > 0 && self.split.spot(replicas) == 0 {
            notes.push(format!("{percentage}% of {replicas} replicas is less than one: none runs on spot"));
        }
        if percentage == 100 && floor == 0 {
            notes.push(
                "all replicas run on spot: one interruption can remove all of them (see min-on-demand)".to_owned(),
            );
        }
        notes
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AnnotationSource {
    Workload,
    Namespace,
}

/// An invalid annotation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AnnotationProblem {
    pub annotation: String,
    pub value: String,
    pub source: AnnotationSource,
    pub reason: String,
}

impl fmt::Display for AnnotationProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = match self.source {
            AnnotationSource::Workload => "",
            AnnotationSource::Namespace => " (from the namespace)",
        };
        write!(f, "{}: \"{}\" {}{origin}", self.annotation, self.value, self.reason)
    }
}

/// Parses the requested placement. Returns None if the workload is not managed: neither it nor its
/// namespace has `spot-percentage`, or it opted out with `ignore: "true"` or `enabled: "false"`.
///
/// Annotations of the workload override those of its namespace, and an earlier prefix overrides a
/// later one. Only the effective value is validated, so a workload can repair a bad default of its
/// namespace.
pub fn parse(
    prefixes: &[String],
    namespace: &BTreeMap<String, String>,
    workload: &BTreeMap<String, String>,
) -> Result<Option<Spec>, Vec<AnnotationProblem>> {
    let mut reader = Reader { prefixes, namespace, workload, problems: Vec::new() };

    let ignored = reader.read("ignore", values::switch) == Some(true);
    let disabled = reader.read("enabled", values::switch) == Some(false);
    if ignored || disabled {
        return Ok(None);
    }
    if reader.find("spot-percentage").is_none() {
        return match reader.find("min-on-demand") {
            Some(found) if found.source == AnnotationSource::Workload => {
                reader.problem(&found, "requires spot-percentage");
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
    source: AnnotationSource,
}

struct Reader<'a> {
    prefixes: &'a [String],
    namespace: &'a BTreeMap<String, String>,
    workload: &'a BTreeMap<String, String>,
    problems: Vec<AnnotationProblem>,
}

impl Reader<'_> {
    fn find(&self, name: &str) -> Option<Found> {
        [(self.workload, AnnotationSource::Workload), (self.namespace, AnnotationSource::Namespace)]
            .into_iter()
            .find_map(|(from, source)| {
                self.prefixes.iter().find_map(|prefix| {
                    let annotation = format!("{}/{name}", prefix.trim_end_matches('/'));
                    let value = from.get(&annotation)?.trim().to_owned();
                    Some(Found { annotation, value, source })
                })
            })
    }

    fn problem(&mut self, found: &Found, reason: impl Into<String>) {
        let Found { annotation, value, source } = found;
        let (annotation, value) = (annotation.clone(), value.clone());
        self.problems.push(AnnotationProblem { annotation, value, source: *source, reason: reason.into() });
    }

    fn read<T>(&mut self, name: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let found = self.find(name)?;
        parse(&found.value).map_err(|reason| self.problem(&found, reason)).ok()
    }

    fn window(&mut self) -> Option<Window> {
        let schedule = self
            .read("disruption-schedule", |text| Schedule::parse(text).map_err(|e| format!("is not a schedule: {e}")));
        let duration = self.read("disruption-duration", values::duration);
        match (self.find("disruption-schedule"), self.find("disruption-duration")) {
            (Some(found), None) => self.problem(&found, "requires disruption-duration"),
            (None, Some(found)) if found.source == AnnotationSource::Workload => {
                self.problem(&found, "requires disruption-schedule");
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

    fn read(namespace: &[(&str, &str)], workload: &[(&str, &str)]) -> Result<Option<Spec>, Vec<AnnotationProblem>> {
        parse(&["perennial.dev".to_owned(), "spotalis.io/".to_owned()], &map(namespace), &map(workload))
    }

    #[test]
    fn a_workload_without_a_percentage_is_not_managed() {
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
    fn every_problem_is_reported_at_once_with_its_annotation_and_value() {
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
        perennial.dev/disruption-schedule: "61 * * * *" is not a schedule: invalid minute `61`: it must be from 0 to 59
        perennial.dev/disruption-schedule: "61 * * * *" requires disruption-duration
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
    fn a_workload_with_a_bad_percentage_is_not_managed(#[case] value: &str) {
        assert_eq!(read(&[], &[("perennial.dev/spot-percentage", value)]).unwrap_err().len(), 1);
    }

    #[test]
    fn a_floor_without_a_percentage_is_a_problem() {
        let problems = read(&[], &[("perennial.dev/min-on-demand", "2")]).unwrap_err();
        assert!(problems[0].to_string().contains("requires spot-percentage"));
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
        assert_eq!(FallbackBudget::Count(9).of(7), 7);
        assert_eq!(FallbackBudget::Percentage(10).of(5), 1);
        assert_eq!(FallbackBudget::Percentage(0).of(5), 0);
        assert_eq!(FallbackBudget::Percentage(100).of(u32::MAX), u32::MAX);
    }
}
