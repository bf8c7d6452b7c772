//! The placement model for the explorer.

use perennial_testkit::explorer::{Judged, Model, Successors};

use super::{
    config::Config,
    rules::{Rules, compact_class},
    spec,
    steps::successors,
    world::{Broken, Expected, PODS, Pod, Since, State, Workload},
};

/// Initial state: a Deployment at rest, with a current cache.
fn start(config: &Config, rules: &Rules) -> State {
    let workload = Workload { replicas: config.replicas, wanted: [config.replicas, 0], ..Workload::default() };
    let split = rules.split(&workload);
    let mut pods = [Pod::default(); PODS];
    for (slot, pod) in (0..config.replicas).zip(&mut pods) {
        let class = compact_class(split.class(slot.into()));
        *pod = Pod { uid: slot + 1, choice: class, slot, costs: true, node: class, ready: true, ..Pod::default() };
    }
    let mut state = State {
        pods,
        workload,
        seen_pods: pods,
        seen_workload: workload,
        expected: [Expected::default(); 2],
        open: [(0, 0, 0); 2],
        moved: false,
        moves: 0,
        since: Since::Anything,
        left: config.budget,
        broken: Broken::Nothing,
    };
    state.seen_workload = state.reported(true);
    state
}

impl Model for Rules {
    type State = State;

    fn name(&self) -> &'static str {
        self.config.name
    }

    fn limit(&self) -> usize {
        self.config.limit
    }

    fn start(&self) -> State {
        start(&self.config, self)
    }

    fn look(&self, state: &mut State, out: &mut Successors<State>) -> Judged {
        successors(state, self, out);
        let at_rest = spec::is_at_rest(state, out);
        let violation = spec::violation(state, self, at_rest);
        // Steps before the rest no longer count.
        if at_rest && state.since != Since::Nothing {
            (state.since, state.moves) = (Since::Nothing, 0);
            successors(state, self, out);
        }
        Judged { at_rest, violation }
    }

    fn show(&self, state: &State) -> String {
        let pods: Vec<String> = state.pods.iter().filter(|pod| pod.uid != 0).map(ToString::to_string).collect();
        format!("{}; {:?}", pods.join(", "), state.workload)
    }
}
