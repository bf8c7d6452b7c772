//! Breadth-first exploration of every state that a model can reach, with the shortest trace to a
//! violation.

use std::{
    collections::HashSet,
    fmt::{Debug, Write as _},
    hash::{BuildHasherDefault, Hash},
    time::Instant,
};

use crate::state_hash::Fast;

/// A small world with the rules under test.
pub trait Model {
    type State: Clone + Hash;

    fn name(&self) -> &'static str;
    /// Maximum number of states to explore.
    fn limit(&self) -> usize;
    fn start(&self) -> Self::State;
    /// Judges a state and adds all states that can follow it. May replace the state by an
    /// equivalent one.
    fn look(&self, state: &mut Self::State, out: &mut Successors<Self::State>) -> Judged;
    fn show(&self, state: &Self::State) -> String;
}

/// The result of checking a state.
#[derive(Debug)]
pub struct Judged {
    /// The operator has nothing left to do.
    pub at_rest: bool,
    /// The guarantee that it violates.
    pub violation: Option<String>,
}

/// The states that can follow one state.
#[derive(Debug)]
pub struct Successors<S> {
    pub states: Vec<S>,
    names: Vec<String>,
    /// Names cost time and are needed for a trace only.
    with_names: bool,
}

impl<S> Successors<S> {
    fn new(with_names: bool) -> Self {
        Self { states: Vec::new(), names: Vec::new(), with_names }
    }

    pub fn clear(&mut self) {
        self.states.clear();
        self.names.clear();
    }

    pub fn push(&mut self, state: S, name: impl FnOnce() -> String) {
        self.states.push(state);
        if self.with_names {
            self.names.push(name());
        }
    }
}

struct Found {
    violation: String,
    trace: String,
}

struct Explored {
    states: usize,
    depth: usize,
    at_rest: usize,
    /// Every state that can be reached was visited.
    exhausted: bool,
    found: Option<Found>,
}

/// Explores models and fails with the traces of all violations.
///
/// # Panics
/// If a guarantee does not hold, a model has more states than its limit, or a model never comes to
/// rest.
pub fn assert_safe<M: Model>(models: impl IntoIterator<Item = M>) {
    let (mut violations, mut total) = (String::new(), 0);
    for model in models {
        let begun = Instant::now();
        let Explored { states, depth, at_rest, exhausted, found } = explore(&model);
        let (name, which) = (model.name(), if exhausted { "all" } else { "the first" });
        let seconds = begun.elapsed().as_secs_f32();
        println!("{name}: {which} {states} states, {depth} deep, {at_rest} at rest, {seconds:.1} s");
        total += states;
        if let Some(found) = found {
            let _ = writeln!(violations, "{name}: {}\n{}", found.violation, found.trace);
        } else if !exhausted {
            let _ = writeln!(violations, "{name}: more than {} states", model.limit());
        } else if at_rest == 0 {
            let _ = writeln!(violations, "{name}: nothing ever comes to rest");
        }
    }
    println!("{total} states in all");
    assert!(violations.is_empty(), "{violations}");
}

/// Explores the models that lack a rule, for each of these rules, and fails for rules without which
/// every guarantee holds.
///
/// # Panics
/// If no guarantee breaks without one of the rules.
pub fn assert_needed<R, M, W>(rules: &[R], without: impl Fn(R) -> W)
where
    R: Copy + Debug,
    M: Model,
    W: IntoIterator<Item = M>,
{
    let mut missed = Vec::new();
    for &rule in rules {
        let explored = without(rule).into_iter().map(|model| explore(&model));
        match explored.into_iter().find_map(|explored| Some((explored.found?, explored.states))) {
            Some((found, states)) => println!("{rule:?}: {} ({states} states)", found.violation),
            None => missed.push(rule),
        }
    }
    println!("caught {} of {} mutations", rules.len() - missed.len(), rules.len());
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

#[expect(clippy::cast_possible_truncation, reason = "limits are far below 2^32 states, each with few successors")]
fn explore<M: Model>(model: &M) -> Explored {
    let first = model.start();
    let mut seen: HashSet<u128, BuildHasherDefault<Fast>> = HashSet::default();
    seen.insert(Fast::wide(&first));
    // For each state its predecessor, and its position among the successors of that.
    let mut parents: Vec<(u32, u16)> = vec![(0, 0)];
    let mut frontier: Vec<(u32, M::State)> = vec![(0, first)];
    let mut out = Successors::new(false);
    let (mut depth, mut at_rest) = (0, 0);
    let mut found = None;
    'search: while !frontier.is_empty() && parents.len() <= model.limit() {
        depth += 1;
        let mut next = Vec::new();
        for (index, state) in &frontier {
            let judged = model.look(&mut state.clone(), &mut out);
            at_rest += usize::from(judged.at_rest);
            if let Some(violation) = judged.violation {
                found = Some(Found { violation, trace: trace(model, &parents, *index) });
                break 'search;
            }
            for (choice, state) in out.states.iter().enumerate() {
                if seen.insert(Fast::wide(state)) {
                    next.push((parents.len() as u32, state.clone()));
                    parents.push((*index, choice as u16));
                }
            }
        }
        frontier = next;
    }
    let exhausted = found.is_none() && frontier.is_empty();
    Explored { states: parents.len(), depth, at_rest, exhausted, found }
}

fn trace<M: Model>(model: &M, parents: &[(u32, u16)], mut index: u32) -> String {
    let mut choices = Vec::new();
    while index != 0 {
        let (parent, choice) = parents[index as usize];
        choices.push(choice);
        index = parent;
    }
    let mut state = model.start();
    let mut text = format!("  start: {}\n", model.show(&state));
    let mut out = Successors::new(true);
    for choice in choices.into_iter().rev() {
        model.look(&mut state, &mut out);
        state = out.states.swap_remove(choice.into());
        let _ = writeln!(text, "  {}", out.names[usize::from(choice)]);
    }
    let _ = writeln!(text, "  end: {}", model.show(&state));
    text
}
