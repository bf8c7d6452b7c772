//! Gated pods: which class and slot each gets, and which have to wait. Then the places that are still open: the pods that take
//! them need no gate.
//!
//! Owns the decision for pods that have not been placed. Never touches a pod that runs.

use jiff::{SignedDuration, Timestamp};

use super::action::{Action, Event, Plan, place_patch};
use super::fallback::Supply;
use super::labels::Choice;
use super::occupancy::{Book, Group, Seat, count};
use super::rebalance::Input;
use super::release::{Why, after, free};
use super::view::{EXPECTED_FOR, Place};
use super::{Class, FALLBACK};

/// So many open places are named at most; the next look names more.
const OPEN_AT_MOST: u32 = 1_024;

/// Why a pod that could be placed waits, and until when at most.
struct Wait {
    reason: String,
    limit: SignedDuration,
}

/// Places the gated pods of one ReplicaSet: class by counts, the lowest hole of that class, oldest pod first. On-demand pods come
/// first in the plan, so that the floor is filled before anything else. Applies its own effect to the seats.
pub(super) fn assign(group: &mut Group<'_>, input: &Input<'_>, supply: &mut Supply, rollout: bool, plan: &mut Plan) {
    let split = input.spec.split;
    let n = group.n();
    let gated = group.gated();
    let mut filled = count(group.seats.iter()) - gated;
    let open = n.saturating_sub(filled + gated).min(OPEN_AT_MOST);
    if gated == 0 && open == 0 {
        // That none is open has to be said: what a former look named may be filled by now.
        plan.open.insert(group.set.uid.clone(), Vec::new());
        return;
    }
    let (mut x, mut y) = (group.count(Class::Spot), group.count(Class::OnDemand));
    let mut book = Book::new(split, group.seats.len() + 1 + usize::try_from(open).unwrap_or_default());
    for slot in group.seats.iter().filter(|seat| !seat.gated).filter_map(|seat| seat.slot) {
        book.take(slot);
    }
    let mut spot_limit = Limit::new(group, input, rollout);
    let given_up =
        group.seats.iter().filter(|seat| seat.pod.expected).map(|seat| after(seat.pod.created, EXPECTED_FOR)).min();
    let open = if supply.short || spot_limit.waits() || input.workload.template != Choice::Any { 0 } else { open };
    let (mut first, mut then) = (Vec::new(), Vec::new());

    let mut gated: Vec<&mut Seat<'_>> = group.seats.iter_mut().filter(|seat| seat.gated).collect();
    gated.sort_by(|a, b| (a.pod.created, &a.pod.name).cmp(&(b.pod.created, &b.pod.name)));
    for seat in gated {
        if seat.pod.choice != Choice::Any {
            seat.gated = false;
            match seat.class {
                Some(Class::Spot) => x += 1,
                Some(Class::OnDemand) => y += 1,
                None => {}
            }
            first.push(free(seat.pod, Why::Refused, input.spec.strength, input.settings));
            continue;
        }
        // Every place is taken, one of them by a pod that may never come: then it is this one's.
        if let Some(given_up) = given_up.filter(|_| filled >= n) {
            let until = given_up.min(after(seat.pod.created, input.settings.gate_timeout));
            if input.now < until {
                plan.by(until);
                let reason = "its place was given to a pod that has not appeared yet".to_owned();
                then.push(Action::Hold { pod: seat.pod.into(), slot: n.saturating_sub(1), until, reason });
                continue;
            }
        }
        filled += 1;
        let wanted = split.next(x, y);
        let falls = wanted == Class::Spot && supply.falls(y < split.on_demand(n));
        let class = if falls { Class::OnDemand } else { wanted };
        // A pod that falls back takes an on-demand slot while there is one, then the highest spot slot.
        let high = if falls && y >= split.on_demand(n) { book.highest(Class::Spot, split.spot(n)) } else { None };
        // Where a pod of the other class sits in the last place of this one, theirs is taken: they change places when all are there.
        let own = high.or_else(|| book.lowest(class));
        let Some(slot) = own.or_else(|| book.lowest(class.other())) else { continue };
        let fallback = high.is_some();
        match class {
            Class::Spot => x += 1,
            Class::OnDemand => y += 1,
        }
        if let (Class::Spot, Some(wait)) = (class, spot_limit.wait()) {
            let until = after(seat.pod.created, wait.limit);
            if input.now < until {
                plan.by(until);
                then.push(Action::Hold { pod: seat.pod.into(), slot, until, reason: wait.reason });
                continue;
            }
        }
        spot_limit.outstanding += u32::from(class == Class::Spot);
        seat.gated = false;
        (seat.class, seat.slot, seat.fallback, seat.unseen) = (Some(class), Some(slot), fallback, true);
        let affinity = seat.pod.node_affinity.as_ref();
        let selection = input.settings.labels.select(class, input.spec.strength, affinity);
        let patch = place_patch(seat.pod, class, slot, fallback, selection);
        let reason = reason(class, slot, fallback, falls);
        let placed = Action::Place { pod: seat.pod.into(), class, slot, fallback, patch, reason };
        if class == Class::OnDemand { first.push(placed) } else { then.push(placed) }
    }
    if then.iter().any(|action| matches!(action, Action::Place { .. })) && spot_limit.overdue(group, input.now) {
        then.push(Event::warning(
            "HoldTimedOut",
            format!(
                "spot pods of the rollout were started although fewer than {} of its on-demand pods are Ready",
                split.floor()
            ),
        ));
    }
    plan.actions.append(&mut first);
    plan.actions.append(&mut then);

    let places = (0..open).map_while(|_| {
        let class = split.next(x, y);
        match class {
            Class::Spot => x += 1,
            Class::OnDemand => y += 1,
        }
        book.lowest(class).map(|slot| Place { class, slot })
    });
    plan.open.insert(group.set.uid.clone(), places.collect());
}

fn reason(class: Class, slot: u32, fallback: bool, falls: bool) -> String {
    match (fallback, falls) {
        (true, _) => format!("slot {slot} is spot, but spot capacity is short: on-demand, marked {FALLBACK}"),
        (false, true) => format!("slot {slot} is on-demand, filled early because spot capacity is short"),
        (false, false) => format!("slot {slot} is {class}"),
    }
}

/// What keeps spot pods waiting.
struct Limit {
    /// Ready on-demand pods that the rollout still lacks.
    lacking: u32,
    floor: u32,
    /// Spot pods without a node, and how many of them may be there at once after a mass interruption.
    outstanding: u32,
    window: Option<u32>,
    hold: SignedDuration,
    damp: SignedDuration,
}

impl Limit {
    fn new(group: &Group<'_>, input: &Input<'_>, rollout: bool) -> Self {
        let split = input.spec.split;
        let spot = split.spot(group.n());
        let lacking = split.floor().saturating_sub(group.ready(Class::OnDemand));
        // One that has more pods than it is known to want is not known well: it may be the newest by now.
        let may_be_newest = group.set.newest || count(group.seats.iter()) > group.n();
        let storm = group.leaving >= spot.div_ceil(4).max(3);
        Self {
            lacking: if rollout && may_be_newest { lacking } else { 0 },
            floor: split.floor(),
            outstanding: count(group.seats.iter().filter(|seat| seat.is(Class::Spot) && seat.unbound())),
            window: storm.then(|| (spot / 10).max(5)),
            hold: input.settings.hold_timeout,
            damp: input.settings.gate_timeout,
        }
    }

    /// Whether spot pods wait, or may have to.
    fn waits(&self) -> bool {
        self.lacking > 0 || self.window.is_some()
    }

    fn wait(&self) -> Option<Wait> {
        if self.lacking > 0 {
            let reason = format!(
                "another ReplicaSet still has pods, and {} of {} on-demand pods of this one are not Ready yet",
                self.lacking, self.floor
            );
            return Some(Wait { reason, limit: self.hold });
        }
        let window = self.window.filter(|window| self.outstanding >= *window)?;
        let reason = format!("many spot pods were lost at once: {window} replacements at a time");
        Some(Wait { reason, limit: self.damp })
    }

    fn overdue(&self, group: &Group<'_>, now: Timestamp) -> bool {
        self.lacking > 0 && group.seats.iter().any(|seat| now >= after(seat.pod.created, self.hold))
    }
}
