//! The keeper model for the explorer.

use perennial_testkit::explorer::{Judged, Model, Successors};

use super::{
    config::Config,
    rules::Rules,
    spec,
    steps::successors,
    world::{
        Audit, Broken, Creation, Deletion, Event, Expected, LOG, Mark, Node, REPORTS_ALL, Record, Replica, SLOTS, State,
    },
};

const PREDECESSOR: u8 = 7;

fn start(config: &Config) -> State {
    let labels = config.first_labels;
    let mut node =
        Node { uid: 1, rv: 1, labels, hardware: 1, reported: config.first_report.max(REPORTS_ALL), ..Node::default() };
    let present = labels != [0, 0];
    let mut record = if present {
        Record { present, uid: 1, rv: 1, labels, machine: node.machine(), ..Record::default() }
    } else {
        Record::default()
    };
    if config.returned {
        record.uid = PREDECESSOR;
        node.rv = 2;
        node.mark = Mark { present: true, complete: true, from: labels, base: labels };
    }
    let mut replicas = [Replica::default(); 2];
    for replica in &mut replicas[..config.replicas] {
        *replica = Replica { synced: true, cache: node, ..Replica::default() };
    }
    let mut want = [1; SLOTS];
    for (want, label) in want.iter_mut().zip(labels) {
        *want = spec::bit(label);
    }
    State {
        node,
        record,
        log: [Event::default(); LOG],
        events: 0,
        replicas,
        deletion: Deletion::default(),
        zombie: Deletion::default(),
        creation: Creation::default(),
        audit: Audit::default(),
        away: 0,
        returned: false,
        saved: Node::default(),
        policy: 0,
        left: config.budget,
        expected: Expected { want, seen: want, ..Expected::default() },
        writes: 0,
        broken: Broken::Nothing,
    }
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
        start(&self.config)
    }

    fn look(&self, state: &mut State, out: &mut Successors<State>) -> Judged {
        let at_rest = spec::is_at_rest(state, self);
        successors(state, self, out);
        Judged { at_rest, violation: spec::violation(state, self, at_rest) }
    }

    fn show(&self, state: &State) -> String {
        format!("{}, {}, {:?}", state.node, state.record, state.expected)
    }
}
