use rstest::rstest;

use super::*;

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn read(namespace: &[(&str, &str)], workload: &[(&str, &str)]) -> Result<Option<Spec>, Vec<AnnotationProblem>> {
    parse(&AnnotationRules::of(&["perennial.dev", "spotalis.io/"]), &map(namespace), &map(workload))
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
    perennial.dev/min-on-demand: "-1" is neither a count of replicas (3) nor a percentage of them (20%)
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

#[rstest]
#[case::defaults(&[], &[("spotalis.io/enabled", "true")], 70, 1)]
#[case::of_the_namespace(&[("spotalis.io/enabled", "true")], &[], 70, 1)]
#[case::floor_alone(&[], &[("spotalis.io/enabled", "true"), ("spotalis.io/min-on-demand", "3")], 70, 3)]
#[case::share_alone(&[], &[("spotalis.io/enabled", "true"), ("spotalis.io/spot-percentage", "50")], 50, 1)]
#[case::own_share_alone(&[], &[("perennial.dev/enabled", "true"), ("perennial.dev/spot-percentage", "50")], 50, 0)]
fn an_enabled_workload_has_a_share_and_a_floor(
    #[case] namespace: &[(&str, &str)],
    #[case] workload: &[(&str, &str)],
    #[case] share: u8,
    #[case] floor: u32,
) {
    assert_eq!(read(namespace, workload).unwrap().unwrap().split, Split::new(share, floor));
    let mut opted_out = workload.to_vec();
    opted_out.push(("perennial.dev/enabled", "false"));
    assert_eq!(read(namespace, &opted_out), Ok(None));
}

#[test]
fn defaults_fill_in_and_never_make_a_workload_managed() {
    let defaults = [("spot-percentage", "80"), ("min-on-demand", "25%"), ("max-spot", "6"), ("fallback-after", "1m")];
    let rules = AnnotationRules { defaults: map(&defaults), ..AnnotationRules::of(&["perennial.dev"]) };
    assert_eq!(parse(&rules, &map(&[]), &map(&[])), Ok(None));
    let enabled = parse(&rules, &map(&[]), &map(&[("perennial.dev/enabled", "true")])).unwrap().unwrap();
    assert_eq!(enabled.split, Split::new(80, 0).with_floor(Floor::Percentage(25)).with_max_spot(6));
    assert_eq!(enabled.fallback_after, SignedDuration::from_mins(1));
    let own = map(&[("perennial.dev/spot-percentage", "50"), ("perennial.dev/min-on-demand", "1")]);
    let own = parse(&rules, &map(&[]), &own).unwrap().unwrap();
    assert_eq!(own.split, Split::new(50, 1).with_max_spot(6));
    assert!(rules.problems().is_empty());
    let wrong = AnnotationRules { defaults: map(&[("disruption-schedule", "x")]), ..rules };
    assert_eq!(wrong.problems().len(), 2, "{:?}", wrong.problems());
}

#[test]
fn a_schedule_may_have_a_time_zone() {
    let window = |zone: &str| {
        let all = [
            ("perennial.dev/spot-percentage", "50"),
            ("perennial.dev/disruption-schedule", "0 2 * * *"),
            ("perennial.dev/disruption-duration", "1h"),
            ("perennial.dev/disruption-time-zone", zone),
        ];
        read(&[], &all)
    };
    let prefixed = Schedule::parse("CRON_TZ=Europe/Berlin 0 2 * * *").unwrap();
    assert_eq!(window("Europe/Berlin").unwrap().unwrap().window.unwrap().schedule, prefixed);
    assert!(window("Berlin").unwrap_err()[0].to_string().contains("is not a time zone"));
}

/// The zone of a namespace is a default. It does not change a schedule that names its own zone.
#[test]
fn a_zone_in_the_schedule_is_overridden_only_by_an_annotation_of_the_same_object_or_a_nearer_one() {
    let (zone, berlin) = ("perennial.dev/disruption-time-zone", "CRON_TZ=Europe/Berlin 0 2 * * *");
    let schedule = ("perennial.dev/disruption-schedule", berlin);
    let rest = [("perennial.dev/spot-percentage", "50"), ("perennial.dev/disruption-duration", "1h")];
    let window = |namespace: &[(&str, &str)], workload: &[(&str, &str)]| {
        let workload: Vec<_> = workload.iter().chain(&rest).copied().collect();
        read(namespace, &workload).unwrap().unwrap().window.unwrap().schedule
    };
    let parsed = |text: &str| Schedule::parse(text).unwrap();
    assert_eq!(window(&[(zone, "Asia/Tokyo")], &[schedule]), parsed(berlin));
    let tokyo = parsed("CRON_TZ=Asia/Tokyo 0 2 * * *");
    assert_eq!(window(&[schedule], &[(zone, "Asia/Tokyo")]), tokyo);
    assert_eq!(window(&[(zone, "Asia/Tokyo")], &[("perennial.dev/disruption-schedule", "0 2 * * *")]), tokyo);
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
