//! `perennial explain NODE`: the whole story of a node.

use std::{collections::BTreeSet, fmt::Write as _, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Node as FullNode};
use kube::{Api, Client, api::ListParams};
use perennial_core::keeper::{
    admission::kubelet_may_set,
    case::{Case, CaseContext, Phase},
    decide::{Decision, decide},
    identity::Identified,
    import::decide::IMPORTED_UID,
    keys::{Kept, Key},
    mark::MARK,
    policy_set::PolicySet,
    record::Record,
    selection::{Node, Policy},
    status::KeepStatus,
    stored_record::Stored,
};
use serde_json::{Value, json};

use crate::{
    inspect::{
        format::{age, pairs},
        leases::{Leases, ShardOwner},
        look::Look,
        records::as_json,
        session::Session,
    },
    runtime::request::FIELD_MANAGER,
};

/// How an incarnation came by what it was given.
pub(crate) struct Way {
    pub(crate) at: Option<Timestamp>,
    /// By a patch of the operator's; otherwise it rode in the create.
    patched: bool,
}

impl Way {
    pub(crate) fn words(&self) -> &'static str {
        if self.patched { "by a patch of the operator's" } else { "in its own create, by the webhook" }
    }
}

/// The API server remembers who wrote the mark by a request of its own; what a webhook puts into a create is nobody's.
pub(crate) async fn way(client: &Client, name: &str) -> Option<Way> {
    let api: Api<FullNode> = Api::all(client.clone());
    let metadata = api.get_metadata(name).await.ok()?.metadata;
    let field = format!("f:{MARK}");
    let wrote = metadata.managed_fields?.into_iter().find(|entry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
        fields.and_then(|fields| fields.pointer("/f:metadata/f:annotations")?.get(&field)).is_some()
    });
    Some(match wrote {
        Some(entry) if entry.manager.as_deref() == Some(FIELD_MANAGER) => {
            Way { at: entry.time.map(|time| time.0), patched: true }
        }
        _ => Way { at: metadata.creation_timestamp.map(|time| time.0), patched: false },
    })
}

/// Something that the operator said about the node.
pub(crate) struct Said {
    pub(crate) at: Option<Timestamp>,
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// What the operator said about the node, oldest first. Events are kept for an hour or so, and not everyone may read them.
pub(crate) async fn events(client: &Client, name: &str) -> Vec<Said> {
    let api: Api<Event> = Api::default_namespaced(client.clone());
    let selector = format!("involvedObject.kind=Node,involvedObject.name={name}");
    let Ok(list) = api.list(&ListParams::default().fields(&selector)).await else { return Vec::new() };
    let ours = |event: &Event| {
        event.source.as_ref().is_some_and(|source| source.component.as_deref() == Some("perennial"))
            || event.reporting_component.as_deref() == Some("perennial")
    };
    let mut said: Vec<Said> = list
        .items
        .into_iter()
        .filter(ours)
        .map(|event| Said {
            at: event.last_timestamp.or(event.first_timestamp).map(|time| time.0),
            reason: event.reason.unwrap_or_default(),
            message: event.message.unwrap_or_default(),
        })
        .collect();
    said.sort_by_key(|said| said.at);
    said
}

/// What the next incarnation would get if this one were deleted now.
pub(crate) struct NextLife {
    pub(crate) given: Kept,
    /// What a kubelet may not bring in its own create: given right after it.
    pub(crate) later: Vec<Key>,
    pub(crate) withheld: Vec<Key>,
}

/// Computed with the operator's own decision, for the same machine and a node without labels.
pub(crate) fn next_life(look: &Look) -> Option<NextLife> {
    let case = &look.case;
    if case.is_ignored() || case.has_newer_record() {
        return None;
    }
    let record: Option<Record> = match decide(&case.deleted()) {
        Decision::WriteRecord(_, next) if case.node().is_some() => Some(*next),
        _ => look.record(),
    };
    let record = record?;
    let machine = case.node().map_or_else(|| record.node.machine.clone(), |node| node.machine.clone());
    // A node that is being created has a UID that no record contains.
    let bare = Node { name: record.node.name.clone(), uid: "next".to_owned(), machine, ..Node::default() };
    let policies = PolicySet::from(case.policy().clone());
    let context = CaseContext { policies: &policies, now: Timestamp::now(), by: "cli" };
    let stored = Some(Arc::new(Stored::Good(Box::new(record))));
    let phase = Phase::Creating { by_kubelet: false };
    let Decision::PatchNode(whole) = decide(&Case::new(phase, Some(bare), stored, Vec::new(), &context)) else {
        return None;
    };
    let later = whole.set.keys().filter(|key| !kubelet_may_set(key)).cloned().collect();
    Some(NextLife { given: whole.set, later, withheld: whole.withheld.into_iter().collect() })
}

/// State, identity, kept keys, restored keys, refusals, Events and future of a node.
pub(crate) struct NodeExplanation<'a> {
    look: &'a Look,
    standing: KeepStatus,
    way: Option<Way>,
    events: Vec<Said>,
    owner: Option<ShardOwner>,
    next: Option<NextLife>,
}

impl<'a> NodeExplanation<'a> {
    pub(crate) async fn read(session: &Session, look: &'a Look) -> Self {
        let name = look.name();
        let way = match look.node() {
            Some(node) if node.annotations.contains_key(MARK) => way(&session.client, name).await,
            _ => None,
        };
        let leases = Leases::read(&session.client, session.settings.namespace.as_str()).await.ok();
        Self {
            look,
            standing: look.status(),
            way,
            events: events(&session.client, name).await,
            owner: leases.map(|leases| leases.owner(name, "restore")),
            next: next_life(look),
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        let Self { look, standing, way, events, owner, next } = self;
        let name = look.name();
        json!({
            "node": name,
            "state": standing.state().as_str(),
            "standing": standing.sentence(),
            "uid": look.node().map(|node| &node.uid),
            "identity": look.identity().map(|identity| identity.text().unwrap_or_else(|| format!("name={name}"))),
            "policy": look.policy().name,
            "kept": look.kept(),
            "mark": look.mark(),
            "restored": way.as_ref().map(|way| json!({"at": way.at, "by": way.words()})),
            "record": look.held.as_ref().map(as_json),
            "ifDeletedNow": next.as_ref().map(|next| json!({"given": next.given, "later": next.later, "withheld": next.withheld})),
            "events": events.iter().map(|event| json!({"at": event.at, "reason": event.reason, "message": event.message})).collect::<Vec<_>>(),
            "attended": owner.as_ref().map(ShardOwner::is_attended),
        })
    }

    pub(crate) fn to_text(&self) -> String {
        let name = self.look.name();
        let mut text = String::new();
        let mut say = |line: String| {
            let _ = writeln!(text, "{line}");
        };
        say(format!("{name} is {}.", self.standing.sentence()));
        if let (true, Some(owner)) = (self.standing.is_due(), &self.owner) {
            say(format!("  {}.", owner.sentence()));
        }
        say(format!("\nWho it is: {}", self.identity(name)));
        say(format!("\nPolicy: {}", policy(self.look.policy())));
        say(format!("\nWhat is kept: {}", self.kept()));
        for line in self.keys() {
            say(format!("  {line}"));
        }
        say(format!("\nWhat was restored: {}", self.restored()));
        let refused = self.refused();
        say(format!("\nWhat was refused: {}", if refused.is_empty() { "nothing that is known of" } else { "" }));
        for line in refused {
            say(format!("  {line}"));
        }
        say(format!("\nIf it were deleted now and came back as the same machine, bare: {}", self.future()));
        if !self.events.is_empty() {
            say("\nWhat the operator said lately:".to_owned());
            let now = Timestamp::now();
            for said in &self.events {
                let at = said.at.map(|at| format!("{} ago", age(at, now))).unwrap_or_default();
                say(format!("  {at:>8}  {}: {}", said.reason, said.message));
            }
        }
        text
    }

    fn identity(&self, name: &str) -> String {
        let by = self.look.identity().and_then(Identified::text).unwrap_or_else(|| format!("its name, {name}"));
        let incarnation = match self.look.node() {
            Some(node) => {
                let created = Timestamp::from_second(node.created).unwrap_or(Timestamp::UNIX_EPOCH);
                format!("this incarnation is {}, created {} ago", node.uid, age(created, Timestamp::now()))
            }
            None => "no incarnation of it is alive".to_owned(),
        };
        let last = match self.look.stored() {
            Some(Stored::Good(record)) if self.look.node().is_none_or(|node| node.uid != record.node.uid) => {
                match record.node.uid.as_str() {
                    IMPORTED_UID => "; its record was imported".to_owned(),
                    uid => format!("; its record was last written from {uid}"),
                }
            }
            _ => String::new(),
        };
        format!("known by {by}; {incarnation}{last}.")
    }

    fn kept(&self) -> String {
        let now = Timestamp::now();
        match self.look.held.as_ref().map(|held| (held, held.stored())) {
            None => "there is no record.".to_owned(),
            Some((held, Stored::Good(record))) => format!(
                "{} key(s) in record {}, sequence {}, written {} ago by {}.",
                record.kept.len(),
                held.name(),
                record.sequence,
                age(record.captured_at, now),
                record.captured_by
            ),
            Some((held, Stored::Bad { fault, .. })) => {
                format!(
                    "record {} cannot be trusted: {fault}. Its bytes are kept, nothing is restored from them.",
                    held.name()
                )
            }
        }
    }

    /// Every key of node and record, with where it comes from.
    fn keys(&self) -> Vec<String> {
        let (live, record) = (self.look.kept(), self.look.record());
        let on_node = live.cloned().unwrap_or_default();
        let in_record = record.map(|record| record.kept).unwrap_or_default();
        let mark = self.look.mark();
        let all: BTreeSet<&Key> = on_node.keys().chain(in_record.keys()).collect();
        all.into_iter()
            .map(|key| {
                let given =
                    mark.is_some_and(|mark| mark.given.get(key) == on_node.get(key) && on_node.contains_key(key));
                let origin = match (on_node.get(key), in_record.get(key)) {
                    (Some(now), Some(then)) if now == then && given => "given back".to_owned(),
                    (Some(now), Some(then)) if now == then => "the node's own".to_owned(),
                    (Some(_), Some(then)) => format!("the node's own; the record has {then}"),
                    (Some(_), None) => "not in the record yet".to_owned(),
                    (None, _) if live.is_none() => "kept".to_owned(),
                    (None, _) => "not on the node".to_owned(),
                };
                format!(
                    "{key}={}   ({origin})",
                    on_node.get(key).or_else(|| in_record.get(key)).map_or("", String::as_str)
                )
            })
            .collect()
    }

    fn restored(&self) -> String {
        if self.look.node().is_none() {
            return "nothing, while it is away.".to_owned();
        }
        let Some(mark) = self.look.mark() else {
            return "nothing; this incarnation carries no mark of ours.".to_owned();
        };
        let way = match &self.way {
            Some(way) => {
                let at = way.at.map(|at| format!(" {} ago", age(at, Timestamp::now()))).unwrap_or_default();
                format!("{at}, {}", way.words())
            }
            None => String::new(),
        };
        let rest = if mark.complete { "and that was everything" } else { "and something was held back" };
        let given = if mark.unlisted { "more keys than fit into its mark".to_owned() } else { pairs(&mark.given) };
        format!("{given}{way}, {rest}.")
    }

    fn refused(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let list = |keys: Vec<&Key>| keys.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        match &self.standing {
            KeepStatus::Waiting(keys) => {
                lines.push(format!("{} wait until the node shows which machine it is", list(keys.iter().collect())));
            }
            KeepStatus::Unsettled(restore) if !restore.withheld.is_empty() => {
                lines.push(format!("{}: not for this machine", list(restore.withheld.iter().collect())));
            }
            KeepStatus::Contested(rivals) => {
                lines.push(format!("everything, since {} has the same identity", rivals.join(", ")));
            }
            _ => {}
        }
        if let Some(Stored::Good(record)) = self.look.stored() {
            for other in &record.withheld {
                let keys = Kept::from(other.content.clone());
                let machine = [&other.machine.provider_id, &other.machine.system_uuid, &other.machine.machine_id];
                let machine = machine.into_iter().find(|text| !text.is_empty()).map_or("?", String::as_str);
                lines.push(format!(
                    "{}: kept for machine {machine} only, which had this identity before",
                    list(keys.keys().collect())
                ));
            }
        }
        if let Some(Stored::Bad { fault, .. }) = self.look.stored() {
            lines.push(format!("what the record's bytes say: {fault}"));
        }
        if let Some(mark) = self.look.mark()
            && !mark.own.is_empty()
        {
            lines.push(format!("{}: the node had its own value", list(mark.own.iter().collect())));
        }
        lines
    }

    fn future(&self) -> String {
        let Some(next) = &self.next else { return "it would get nothing from us.".to_owned() };
        if next.given.is_empty() {
            return "it would get nothing.".to_owned();
        }
        let list = |keys: &[Key]| keys.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let later = if next.later.is_empty() {
            String::new()
        } else {
            format!(" ({} right after the create: a kubelet may not bring it)", list(&next.later))
        };
        let withheld = if next.withheld.is_empty() { String::new() } else { format!("; not {}", list(&next.withheld)) };
        format!("it would get {}{later}{withheld}.", pairs(&next.given))
    }
}

fn policy(policy: &Policy) -> String {
    let name =
        if policy.name == "config" { "the configuration".to_owned() } else { format!("KeepPolicy {}", policy.name) };
    let list = |patterns: &perennial_core::config::pattern::Patterns| {
        patterns.as_slice().iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    };
    let dropped = policy.drop.as_slice().len();
    let mut also = Vec::new();
    if !policy.annotations.is_empty() {
        also.push(format!("annotations {}", list(&policy.annotations)));
    }
    if !policy.taints.is_empty() {
        also.push(format!("taints {}", list(&policy.taints)));
    }
    if policy.cordon {
        also.push("cordons".to_owned());
    }
    let also = if also.is_empty() { String::new() } else { format!("; also {}", also.join("; ")) };
    format!(
        "{name} keeps labels {} but for {dropped} pattern(s) that it drops{also}; merge is {}.",
        list(&policy.keep),
        policy.merge
    )
}
