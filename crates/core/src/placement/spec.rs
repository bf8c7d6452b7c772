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
use super::slots::{Floor, Split};

/// Strength of the class of a pod: the scheduler must or should respect it.
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
    /// On-demand replicas above the floor run on spot while on-demand is short.
    pub on_demand_fallback: bool,
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
            on_demand_fallback: false,
        }
    }

    /// Returns notes about legal but possibly unintended settings.
    pub fn notes(&self, replicas: u32) -> Vec<String> {
        let (percentage, floor) = (self.split.percentage(), self.split.floor().of(replicas));
        let mut notes = Vec::new();
        if percentage > 0 && floor > replicas {
            notes.push(format!("min-on-demand {floor} is above the {replicas} replicas: all of them run on-demand"));
        } else if percentage > 0 && replicas > 0 && self.split.spot(replicas) == 0 {
            notes.push(format!("{} allows none of {replicas} replicas on spot", self.split.describe()));
        }
        if percentage == 100 && floor == 0 && self.split.max_spot().is_none() {
            notes.push(
                "all replicas run on spot: one interruption can remove all of them (see min-on-demand)".to_owned(),
            );
        }
        notes
    }
}

/// In order of precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AnnotationSource {
    Workload,
    Namespace,
    /// `placement.defaults` of the configuration.
    Defaults,
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
            AnnotationSource::Defaults => " (from placement.defaults)",
        };
        write!(f, "{}: \"{}\" {}{origin}", self.annotation, self.value, self.reason)
    }
}

/// The share on spot of a workload that is enabled and has no `spot-percentage`, and its minimum.
const ENABLED: (u8, u32) = (70, 1);

/// Prefix of Spotalis, whose minimum also applies to a workload with `spot-percentage`.
const SPOTALIS: &str = "spotalis.io/";

/// Prefixes of the annotations that are read, in order of precedence, and values for annotations
/// that neither the workload nor its namespace has, by name without prefix.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnnotationRules {
    pub prefixes: Vec<String>,
    pub defaults: BTreeMap<String, String>,
}

impl AnnotationRules {
    /// Reads annotations with these prefixes, without defaults.
    pub fn of(prefixes: &[&str]) -> Self {
        Self { prefixes: prefixes.iter().map(|prefix| (*prefix).to_owned()).collect(), ..Self::default() }
    }

    /// Returns the problems of the defaults.
    pub fn problems(&self) -> Vec<AnnotationProblem> {
        let prefix = self.prefixes.first().map_or("perennial.dev", |prefix| prefix.trim_end_matches('/'));
        let enabled = BTreeMap::from([(format!("{prefix}/enabled"), "true".to_owned())]);
        parse(self, &BTreeMap::new(), &enabled).err().unwrap_or_default()
    }
}

/// Parses the requested placement. Returns None if the workload is not managed: neither it nor its
/// namespace has `spot-percentage` or `enabled: "true"`, or it opted out with `ignore: "true"` or
/// `enabled: "false"`.
///
/// Annotations of the workload override those of its namespace, those override the defaults, and an
/// earlier prefix overrides a later one. Only the effective value is validated, so a workload can
/// repair a bad default of its namespace.
pub fn parse(
    rules: &AnnotationRules,
    namespace: &BTreeMap<String, String>,
    workload: &BTreeMap<String, String>,
) -> Result<Option<Spec>, Vec<AnnotationProblem>> {
    let mut reader = Reader { rules, namespace, workload, problems: Vec::new() };

    let ignored = reader.read("ignore", values::switch) == Some(true);
    let enabled = reader.read("enabled", values::switch);
    if ignored || enabled == Some(false) {
        return Ok(None);
    }
    let has_share = reader.find("spot-percentage").is_some_and(|found| found.source != AnnotationSource::Defaults);
    if !has_share && enabled != Some(true) {
        return match reader.find("min-on-demand") {
            Some(found) if found.source == AnnotationSource::Workload => {
                reader.problem(&found, "requires spot-percentage");
                Err(reader.problems)
            }
            _ => Ok(None),
        };
    }

    let by_spotalis = enabled == Some(true) && reader.find("enabled").is_some_and(|found| found.is_of(SPOTALIS));
    let (percentage, floor) = match has_share {
        true if by_spotalis => (0, ENABLED.1),
        true => (0, 0),
        false => ENABLED,
    };
    let percentage = reader.read("spot-percentage", values::percentage).unwrap_or(percentage);
    let floor = reader.read("min-on-demand", values::floor).unwrap_or(Floor::Count(floor));
    let mut spec = Spec::new(Split::new(percentage, 0).with_floor(floor));
    if let Some(max_spot) = reader.read("max-spot", values::count) {
        spec.split = spec.split.with_max_spot(max_spot);
    }
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

    spec.on_demand_fallback = reader.read("on-demand-fallback", on_demand_fallback).unwrap_or(false);

    if reader.problems.is_empty() { Ok(Some(spec)) } else { Err(reader.problems) }
}

fn on_demand_fallback(text: &str) -> Result<bool, String> {
    match text {
        "spot" => Ok(true),
        "none" => Ok(false),
        _ => Err("is neither \"spot\" nor \"none\"".to_owned()),
    }
}

fn strength(text: &str) -> Result<Strength, String> {
    match text {
        "required" => Ok(Strength::Required),
        PREFERRED => Ok(Strength::Preferred),
        _ => Err("is neither \"required\" nor \"preferred\"".to_owned()),
    }
}

struct FoundAnnotation {
    annotation: String,
    value: String,
    source: AnnotationSource,
}

impl FoundAnnotation {
    fn is_of(&self, prefix: &str) -> bool {
        self.annotation.starts_with(prefix)
    }
}

struct Reader<'a> {
    rules: &'a AnnotationRules,
    namespace: &'a BTreeMap<String, String>,
    workload: &'a BTreeMap<String, String>,
    problems: Vec<AnnotationProblem>,
}

impl Reader<'_> {
    fn find(&self, name: &str) -> Option<FoundAnnotation> {
        [(self.workload, AnnotationSource::Workload), (self.namespace, AnnotationSource::Namespace)]
            .into_iter()
            .find_map(|(from, source)| {
                self.rules.prefixes.iter().find_map(|prefix| {
                    let annotation = format!("{}/{name}", prefix.trim_end_matches('/'));
                    let value = from.get(&annotation)?.trim().to_owned();
                    Some(FoundAnnotation { annotation, value, source })
                })
            })
            .or_else(|| {
                let value = self.rules.defaults.get(name)?.trim().to_owned();
                Some(FoundAnnotation { annotation: name.to_owned(), value, source: AnnotationSource::Defaults })
            })
    }

    fn problem(&mut self, found: &FoundAnnotation, reason: impl Into<String>) {
        let FoundAnnotation { annotation, value, source } = found;
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
        // A zone in the schedule itself is overridden only where the schedule could be.
        let explicit = self.find("disruption-schedule").filter(|found| Schedule::names_zone(&found.value));
        let zone = self.find("disruption-time-zone");
        let zone = zone.filter(|zone| explicit.as_ref().is_none_or(|schedule| zone.source <= schedule.source));
        let schedule = match (schedule, zone) {
            (Some(parsed), Some(zone)) => {
                let parsed = parsed.in_zone(&zone.value).ok();
                if parsed.is_none() {
                    self.problem(&zone, "is not a time zone such as Europe/Berlin");
                }
                parsed
            }
            (schedule, _) => schedule,
        };
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
mod tests;
