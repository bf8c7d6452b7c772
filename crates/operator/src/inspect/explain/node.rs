//! State, identity, keys, restores and future of a node.

use std::{collections::BTreeSet, fmt::Write as _};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Node as FullNode};
use kube::{Api, Client, api::ListParams};
use perennial_core::{
    config::Role,
    keeper::{
        explain::explain as cause_of,
        identity::Identified,
        import::decide::IMPORTED_UID,
        keys::{Kept, Key},
        mark::MARK,
        next_incarnation::{NextIncarnation, NothingRestored, next_incarnation},
        selection::Policy,
        status::KeepStatus,
        stored_record::Stored,
    },
};
use serde_json::{Value, json};

use crate::{
    inspect::{
        collection::RecordLifetime,
        format::{age, pairs},
        inspected_node::InspectedNode,
        leases::{Attendance, LeaseSnapshot, ShardOwner},
        records::as_json,
        session::Session,
        states::KeyOrigin,
    },
    runtime::request::FIELD_MANAGER,
};

/// The request that restored an incarnation.
pub(crate) struct RestoreRequest {
    pub(crate) at: Option<Timestamp>,
    /// A patch by the operator. Otherwise the webhook restored it in the create request.
    patched: bool,
}

impl RestoreRequest {
    pub(crate) fn describe(&self) -> &'static str {
        if self.patched { "by a patch of the operator" } else { "in its create request, by the webhook" }
    }
}

/// Reads the request from the managed fields of the mark. Fields that a webhook set in a create
/// have no manager.
pub(crate) async fn restore_request(client: &Client, name: &str) -> Option<RestoreRequest> {
    let api: Api<FullNode> = Api::all(client.clone());
    let metadata = api.get_metadata(name).await.ok()?.metadata;
    let field = format!("f:{MARK}");
    let wrote = metadata.managed_fields?.into_iter().find(|entry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
        fields.and_then(|fields| fields.pointer("/f:metadata/f:annotations")?.get(&field)).is_some()
    });
    Some(match wrote {
        Some(entry) if entry.manager.as_deref() == Some(FIELD_MANAGER) => {
            RestoreRequest { at: entry.time.map(|time| time.0), patched: true }
        }
        _ => RestoreRequest { at: metadata.creation_timestamp.map(|time| time.0), patched: false },
    })
}

/// An Event of the operator about the node.
pub(crate) struct NodeEvent {
    pub(crate) at: Option<Timestamp>,
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// Namespace of the Events about objects without a namespace.
const EVENT_NAMESPACE: &str = "default";

/// Returns the Events of the operator about the node, oldest first. Empty without permission to
/// read them.
pub(crate) async fn events(client: &Client, name: &str) -> Vec<NodeEvent> {
    let api: Api<Event> = Api::namespaced(client.clone(), EVENT_NAMESPACE);
    let selector = format!("involvedObject.kind=Node,involvedObject.name={name}");
    let Ok(list) = api.list(&ListParams::default().fields(&selector)).await else { return Vec::new() };
    let ours = |event: &Event| {
        event.source.as_ref().is_some_and(|source| source.component.as_deref() == Some("perennial"))
            || event.reporting_component.as_deref() == Some("perennial")
    };
    let mut events: Vec<NodeEvent> = list
        .items
        .into_iter()
        .filter(ours)
        .map(|event| NodeEvent {
            at: event.last_timestamp.or(event.first_timestamp).map(|time| time.0),
            reason: event.reason.unwrap_or_default(),
            message: event.message.unwrap_or_default(),
        })
        .collect();
    events.sort_by_key(|event| event.at);
    events
}

/// State, identity, kept keys, restored keys, refusals, Events and future of a node.
pub(crate) struct NodeExplanation<'a> {
    look: &'a InspectedNode,
    standing: KeepStatus,
    way: Option<RestoreRequest>,
    events: Vec<NodeEvent>,
    /// Owner of the write that is due.
    owner: Option<ShardOwner>,
    /// Owner of the restore of its next incarnation.
    restorer: Option<ShardOwner>,
    next: Result<NextIncarnation, NothingRestored>,
    max_absent: u32,
    attendance: Attendance,
}

impl<'a> NodeExplanation<'a> {
    pub(crate) async fn read(session: &Session, look: &'a InspectedNode) -> Self {
        let name = look.name();
        let way = match look.node() {
            Some(node) if node.annotations.contains_key(MARK) => restore_request(&session.client, name).await,
            _ => None,
        };
        let leases = LeaseSnapshot::read(&session.client, session.settings.lease_namespace()).await.ok();
        Self {
            look,
            standing: look.status(),
            way,
            events: events(&session.client, name).await,
            owner: leases.as_ref().map(|leases| leases.owner(name, role_of(&look.status()))),
            restorer: leases.as_ref().map(|leases| leases.owner(name, Role::Restore)),
            next: next_incarnation(&look.case),
            max_absent: session.settings.keeper.max_absent,
            attendance: Attendance::of(&session.settings),
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        let Self { look, standing, way, events, owner, next, .. } = self;
        let name = look.name();
        let lifetime = RecordLifetime::of(look);
        json!({
            "node": name,
            "state": standing.state().as_str(),
            "standing": standing.sentence(),
            "uid": look.node().map(|node| &node.uid),
            "identity": look.identity().map(|identity| identity.text().unwrap_or_else(|| format!("name={name}"))),
            "policy": look.policy().name,
            "kept": look.kept(),
            "mark": look.mark(),
            "restored": way.as_ref().map(|request| json!({"at": request.at, "by": request.describe()})),
            "record": look.held.as_ref().map(as_json),
            "hold": lifetime.is_some_and(|lifetime| lifetime.hold),
            "collection": lifetime.map(RecordLifetime::to_json),
            "unattended": self.unattended(),
            "ifDeletedNow": next.as_ref().ok().map(|next| json!({"given": next.given, "later": next.later, "withheld": next.withheld})),
            "nothingRestored": next.as_ref().err().map(ToString::to_string),
            "events": events.iter().map(|event| json!({"at": event.at, "reason": event.reason, "message": event.message})).collect::<Vec<_>>(),
            "attended": owner.as_ref().map(ShardOwner::is_attended),
        })
    }

    pub(crate) fn to_text(&self) -> String {
        let name = self.look.name();
        let mut text = String::new();
        let mut write = |line: String| {
            let _ = writeln!(text, "{line}");
        };
        write(format!("{name} is {}.", self.standing.sentence()));
        if let (true, Some(owner)) = (self.standing.is_due(), &self.owner) {
            write(format!("  {}.", owner.sentence()));
        }
        write(format!("\nIdentity: {}", self.identity(name)));
        write(format!("\nPolicy: {}", policy(self.look.policy())));
        write(format!("\nRecord: {}", self.kept()));
        let lifetime = RecordLifetime::of(self.look).map(|lifetime| lifetime.limited(self.max_absent));
        if let Some(sentence) = lifetime.and_then(|lifetime| lifetime.sentence(Timestamp::now())) {
            write(format!("  {sentence}"));
        }
        for line in self.keys() {
            write(format!("  {line}"));
        }
        write(format!("\nRestored: {}", self.restored()));
        let refused = self.refused();
        write(format!("\nNot restored: {}", if refused.is_empty() { "none" } else { "" }));
        for line in refused {
            write(format!("  {line}"));
        }
        let next = if self.look.node().is_some() { "deleted now and created again" } else { "created again" };
        write(format!("\nIf it were {next} on the same machine: {}", self.future()));
        if !self.events.is_empty() {
            write("\nRecent Events:".to_owned());
            let now = Timestamp::now();
            for event in &self.events {
                let at = event.at.map(|at| format!("{} ago", age(at, now))).unwrap_or_default();
                write(format!("  {at:>8}  {}: {}", event.reason, event.message));
            }
        }
        text
    }

    fn identity(&self, name: &str) -> String {
        let by = match (self.look.identity().map(Identified::text), self.look.node()) {
            (Some(text), _) => text.unwrap_or_else(|| format!("name={name}")),
            (None, Some(_)) => format!("none yet, the node has no {}", self.look.policy().identity),
            (None, None) => {
                let recorded = self.look.record().and_then(|record| record.identity);
                recorded.unwrap_or_else(|| format!("name={name}"))
            }
        };
        let incarnation = match self.look.node() {
            Some(node) => {
                let created = Timestamp::from_second(node.created).unwrap_or(Timestamp::UNIX_EPOCH);
                format!("current UID {}, created {} ago", node.uid, age(created, Timestamp::now()))
            }
            None => "the node does not exist".to_owned(),
        };
        let last = match self.look.stored() {
            Some(Stored::Good(record)) if self.look.node().is_none_or(|node| node.uid != record.node.uid) => {
                match record.node.uid.as_str() {
                    IMPORTED_UID => "; its record was imported".to_owned(),
                    uid => format!("; its record was last written from UID {uid}"),
                }
            }
            _ => String::new(),
        };
        format!("{by}; {incarnation}{last}.")
    }

    fn kept(&self) -> String {
        let now = Timestamp::now();
        match self.look.held.as_ref().map(|held| (held, held.stored())) {
            None => "none.".to_owned(),
            Some((held, Stored::Good(record))) => format!(
                "{} key(s) in {}, version {}, written {} ago by {}.",
                record.kept.len(),
                held.name(),
                record.sequence,
                age(record.captured_at, now),
                record.captured_by
            ),
            Some((held, Stored::Bad { fault, .. })) => {
                format!("{} is quarantined: {fault}. It is neither restored nor overwritten.", held.name())
            }
        }
    }

    /// Returns all keys of the node and the record, with their origin.
    fn keys(&self) -> Vec<String> {
        let on_node = self.look.kept().cloned().unwrap_or_default();
        let in_record = self.look.record().map(|record| record.kept).unwrap_or_default();
        let all: BTreeSet<&Key> = on_node.keys().chain(in_record.keys()).collect();
        all.into_iter()
            .map(|key| {
                let (live, recorded) = (on_node.get(key), in_record.get(key));
                let origin = KeyOrigin::of(&cause_of(key, &self.look.case), live.is_some());
                let differs = match (live, recorded) {
                    (Some(live), Some(recorded)) if live != recorded => format!("; the record has {recorded}"),
                    _ => String::new(),
                };
                format!("{key}={}   ({origin}{differs})", live.or(recorded).map_or("", String::as_str))
            })
            .collect()
    }

    fn restored(&self) -> String {
        if self.look.node().is_none() {
            return "nothing, the node does not exist.".to_owned();
        }
        let Some(mark) = self.look.mark() else {
            return "nothing; this incarnation has no mark.".to_owned();
        };
        let way = match &self.way {
            Some(request) => {
                let at = request.at.map(|at| format!(" {} ago", age(at, Timestamp::now()))).unwrap_or_default();
                format!("{at}, {}", request.describe())
            }
            None => String::new(),
        };
        let rest = if mark.complete { "complete" } else { "some keys were withheld" };
        let given = if mark.unlisted { "more keys than fit into the mark".to_owned() } else { pairs(&mark.given) };
        format!("{given}{way}, {rest}.")
    }

    fn refused(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let list = |keys: Vec<&Key>| keys.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        match &self.standing {
            KeepStatus::Waiting(keys) => {
                lines.push(format!("{}: waiting until the machine of the node is known", list(keys.iter().collect())));
            }
            KeepStatus::Unsettled(restore) if !restore.withheld.is_empty() => {
                lines.push(format!("{}: captured from another machine", list(restore.withheld.iter().collect())));
            }
            KeepStatus::Contested(rivals) => {
                lines.push(format!("everything: {} has the same identity", rivals.join(", ")));
            }
            _ => {}
        }
        if let Some(Stored::Good(record)) = self.look.stored() {
            for other in &record.withheld {
                let keys = Kept::from(other.content.clone());
                let machine = [&other.machine.provider_id, &other.machine.system_uuid, &other.machine.machine_id];
                let machine = machine.into_iter().find(|text| !text.is_empty()).map_or("?", String::as_str);
                lines.push(format!(
                    "{}: kept for machine {machine}, which had this identity before",
                    list(keys.keys().collect())
                ));
            }
        }
        if let Some(Stored::Bad { fault, .. }) = self.look.stored() {
            lines.push(format!("content of the quarantined record: {fault}"));
        }
        if let Some(mark) = self.look.mark()
            && !mark.own.is_empty()
        {
            lines.push(format!("{}: the node has its own value", list(mark.own.iter().collect())));
        }
        lines
    }

    fn future(&self) -> String {
        let next = match &self.next {
            Ok(next) => next,
            Err(why) => return format!("nothing would be restored: {why}."),
        };
        let list = |keys: &[Key]| keys.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let later = if next.later.is_empty() {
            String::new()
        } else {
            format!(" ({} after the create request: a kubelet may not set it)", list(&next.later))
        };
        let withheld =
            if next.withheld.is_empty() { String::new() } else { format!("; except {}", list(&next.withheld)) };
        let given = pairs(&next.given);
        match self.unattended() {
            None => format!("it would be restored with {given}{later}{withheld}."),
            Some(why) => format!("an operator would restore {given}{later}{withheld}, but {why}."),
        }
    }

    /// Returns why no operator works on the node.
    fn unattended(&self) -> Option<String> {
        self.restorer.as_ref().and_then(|owner| owner.unattended(self.attendance))
    }
}

/// Returns the role that makes the next write.
fn role_of(status: &KeepStatus) -> Role {
    if matches!(status, KeepStatus::Pending(..)) { Role::Capture } else { Role::Restore }
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
        "{name} keeps labels {} except {dropped} dropped pattern(s){also}; merge: {}.",
        list(&policy.keep),
        policy.merge
    )
}
