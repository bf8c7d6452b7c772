//! Storage of the API server: objects, and the ordered log of every committed change.
//!
//! # Guarantees
//! A resourceVersion is a position in the log. A write that changes nothing commits nothing. The
//! oracles read this log only.

mod deletion;
mod fields;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use serde_json::{Value, json};

use self::fields::tidy;
pub use self::{
    deletion::Deletion,
    fields::{field, is_finished, seconds, text, version},
};
use super::{
    authn::User,
    kinds::{Kind, NODES, PODS},
    response::{self, ApiError},
    rules,
};

/// The first resourceVersion is one more than this.
pub const BASE: u64 = 100;

/// Key of an object: kind, namespace and name.
pub type Id = (&'static str, String, String);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Added,
    Modified,
    Deleted,
}

/// One committed change.
#[derive(Clone, Debug)]
pub struct Change {
    pub rv: u64,
    /// Time since the start of the history.
    pub at: Duration,
    pub kind: &'static Kind,
    pub what: What,
    /// The object after the change; for a deletion its last state, with the resourceVersion of the
    /// deletion.
    pub object: Arc<Value>,
    pub before: Option<Arc<Value>>,
    pub by: User,
    /// Time at which the request was sent.
    pub sent: Duration,
    /// Preconditions of the request.
    pub on: Condition,
    /// Part of admission in the change.
    pub admission: Admission,
}

/// Preconditions of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    pub rv: bool,
    pub uid: bool,
}

/// Part of admission in a change.
#[derive(Clone, Debug, Default)]
pub enum Admission {
    #[default]
    None,
    /// The object before admission, and whether the webhook answered.
    Create { came: Arc<Value>, answered: bool },
    /// `looked`: the webhook processed this very state without a fault.
    Delete { looked: bool },
}

impl Change {
    pub fn name(&self) -> &str {
        text(&self.object, "/metadata/name")
    }

    pub fn namespace(&self) -> &str {
        text(&self.object, "/metadata/namespace")
    }

    pub fn uid(&self) -> &str {
        text(&self.object, "/metadata/uid")
    }
}

/// Author, time and preconditions of a write.
#[derive(Clone, Debug)]
pub struct Write {
    pub by: User,
    pub at: Duration,
    pub sent: Duration,
    pub now: Timestamp,
    pub on: Condition,
    pub admission: Admission,
}

/// The object that a write is about.
#[derive(Clone, Copy, Debug)]
pub struct ObjectKey<'a> {
    pub kind: &'static Kind,
    pub namespace: &'a str,
    pub name: &'a str,
}

/// Verb and subresource of an update.
#[derive(Clone, Copy, Debug, Default)]
pub struct How {
    /// PUT instead of PATCH.
    pub put: bool,
    /// Changes the status only.
    pub status: bool,
}

const UID_DIFFERS: &str = "Precondition failed: UID in precondition and in object differ";
const MODIFIED: &str = "the object has been modified; please apply your changes to the latest version and try again";

#[derive(Debug, Default)]
pub struct Store {
    objects: BTreeMap<Id, Arc<Value>>,
    pub log: Vec<Change>,
    /// Versions older than this are compacted.
    pub compacted: u64,
    uids: u64,
    names: u64,
}

impl Store {
    pub fn rv(&self) -> u64 {
        BASE + self.log.len() as u64
    }

    /// Returns the changes after a resourceVersion, up to and including another.
    pub fn between(&self, after: u64, upto: u64) -> &[Change] {
        let index = |rv: u64| usize::try_from(rv.saturating_sub(BASE)).unwrap_or(0).min(self.log.len());
        let (from, to) = (index(after), index(upto));
        if from < to { &self.log[from..to] } else { &[] }
    }

    /// Goes back to a resourceVersion, as a restore of etcd does. Later changes are as if they had
    /// never been. UIDs are not used again.
    pub fn restore(&mut self, rv: u64) {
        self.log.truncate(usize::try_from(rv.saturating_sub(BASE)).unwrap_or_default());
        self.compacted = self.compacted.min(self.rv());
        self.objects.clear();
        for change in &self.log {
            let id = (change.kind.plural, change.namespace().to_owned(), change.name().to_owned());
            match change.what {
                What::Deleted => drop(self.objects.remove(&id)),
                What::Added | What::Modified => drop(self.objects.insert(id, Arc::clone(&change.object))),
            }
        }
    }

    pub fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Option<&Arc<Value>> {
        self.objects.get(&(kind.plural, namespace.to_owned(), name.to_owned()))
    }

    /// Returns all objects of a kind, ordered by name. An empty namespace means all namespaces.
    pub fn all(&self, kind: &Kind, namespace: &str) -> impl Iterator<Item = &Arc<Value>> {
        let from = (kind.plural, namespace.to_owned(), String::new());
        let (plural, namespace) = (kind.plural, namespace.to_owned());
        let within = move |id: &Id| id.0 == plural && (namespace.is_empty() || id.1 == namespace);
        self.objects.range(from..).take_while(move |(id, _)| within(id)).map(|(_, object)| object)
    }

    /// Returns all objects of a kind as they were at a resourceVersion.
    pub fn at(&self, kind: &'static Kind, namespace: &str, rv: u64) -> Vec<Arc<Value>> {
        if rv >= self.rv() {
            return self.all(kind, namespace).cloned().collect();
        }
        let mut then = BTreeMap::new();
        for change in self.between(0, rv) {
            if !std::ptr::eq(change.kind, kind) || !namespace.is_empty() && change.namespace() != namespace {
                continue;
            }
            let id = (change.namespace().to_owned(), change.name().to_owned());
            match change.what {
                What::Deleted => drop(then.remove(&id)),
                What::Added | What::Modified => drop(then.insert(id, Arc::clone(&change.object))),
            }
        }
        then.into_values().collect()
    }

    pub fn create(&mut self, kind: &'static Kind, namespace: &str, mut object: Value, write: Write) -> Done {
        if !object["metadata"].is_object() {
            object["metadata"] = json!({});
        }
        let mut name = text(&object, "/metadata/name").to_owned();
        if name.is_empty() {
            let prefix = text(&object, "/metadata/generateName");
            if prefix.is_empty() {
                return Err(response::invalid(kind, "", "name or generateName is required"));
            }
            self.names += 1;
            name = format!("{prefix}{:05x}", self.names);
        }
        if !text(&object, "/metadata/resourceVersion").is_empty() {
            return Err(response::internal("resourceVersion should not be set on objects to be created"));
        }
        rules::validate(kind, &object)?;
        if self.get(kind, namespace, &name).is_some() {
            return Err(response::exists(kind, &name));
        }
        self.uids += 1;
        let metadata = &mut object["metadata"];
        metadata["name"] = json!(name);
        metadata["uid"] = json!(format!("u{:06}", self.uids));
        metadata["creationTimestamp"] = json!(seconds(write.now));
        if kind.namespaced {
            metadata["namespace"] = json!(namespace);
        }
        if kind.generation {
            metadata["generation"] = json!(1);
        }
        tidy(metadata);
        if kind.status
            && !std::ptr::eq(kind, &NODES)
            && let Some(fields) = object.as_object_mut()
        {
            fields.remove("status");
        }
        rules::default(kind, &mut object);
        object["apiVersion"] = json!(kind.api_version());
        object["kind"] = json!(kind.kind);
        Ok(self.commit(kind, What::Added, (object, None), write))
    }

    /// Replaces an object by the result of `change`. Preconditions in its metadata are checked.
    pub fn update(
        &mut self,
        ObjectKey { kind, namespace, name }: ObjectKey<'_>,
        how: How,
        mut write: Write,
        change: impl FnOnce(&Value) -> Result<Value, ApiError>,
    ) -> Done {
        let put = how.put;
        let Some(before) = self.get(kind, namespace, name).cloned() else {
            if !put || !kind.strict_put {
                return Err(response::not_found(kind, name));
            }
            let object = change(&Value::Null)?;
            if !text(&object, "/metadata/uid").is_empty() {
                return Err(response::conflict(kind, name, UID_DIFFERS));
            }
            return self.put_new(kind, namespace, object, write);
        };
        let mut next = change(&before)?;
        if !next["metadata"].is_object() {
            next["metadata"] = json!({});
        }
        let wanted = text(&next, "/metadata/resourceVersion").to_owned();
        let uid = text(&next, "/metadata/uid").to_owned();
        let other = !uid.is_empty() && uid != text(&before, "/metadata/uid");
        if other && put {
            return Err(response::conflict(kind, name, UID_DIFFERS));
        }
        if wanted.is_empty() && put && kind.strict_put {
            return Err(response::invalid(kind, name, "metadata.resourceVersion: must be specified for an update"));
        }
        if !wanted.is_empty() && wanted != text(&before, "/metadata/resourceVersion") {
            return Err(response::conflict(kind, name, MODIFIED));
        }
        if other {
            return Err(response::invalid(kind, name, "metadata.uid: field is immutable"));
        }
        // Preconditions of a patch are in the patch: its result always has a version.
        if put {
            write.on = Condition { rv: !wanted.is_empty(), uid: !uid.is_empty() };
        }
        if how.status {
            let status = next["status"].take();
            next = (*before).clone();
            next["status"] = status;
        } else if kind.status {
            match before.get("status") {
                Some(status) => next["status"] = status.clone(),
                None => drop(next.as_object_mut().map(|fields| fields.remove("status"))),
            }
        }
        for field in
            ["uid", "creationTimestamp", "name", "namespace", "generation", "resourceVersion", "deletionTimestamp"]
        {
            match before["metadata"].get(field) {
                Some(value) => next["metadata"][field] = value.clone(),
                None => drop(next["metadata"].as_object_mut().map(|fields| fields.remove(field))),
            }
        }
        for field in ["apiVersion", "kind"] {
            next[field] = before[field].clone();
        }
        tidy(&mut next["metadata"]);
        rules::default(kind, &mut next);
        rules::validate(kind, &next)?;
        rules::validate_update(kind, &before, &next)?;
        if next == *before {
            return Ok(before);
        }
        if kind.generation && next["spec"] != before["spec"] {
            next["metadata"]["generation"] = json!(before["metadata"]["generation"].as_i64().unwrap_or_default() + 1);
        }
        let ends = next["metadata"].get("deletionTimestamp").is_some()
            && !std::ptr::eq(kind, &PODS)
            && next["metadata"].get("finalizers").is_none();
        let what = if ends { What::Deleted } else { What::Modified };
        Ok(self.commit(kind, what, (next, Some(before)), write))
    }

    /// Creates a missing object by PUT, for kinds that allow it.
    fn put_new(&mut self, kind: &'static Kind, namespace: &str, mut object: Value, write: Write) -> Done {
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
        }
        self.create(kind, namespace, object, write)
    }

    /// Deletes an object, at once or gracefully.
    pub fn delete(&mut self, key: ObjectKey<'_>, how: &Deletion, write: Write) -> Done {
        let ObjectKey { kind, namespace, name } = key;
        let Some(before) = self.get(kind, namespace, name).cloned() else {
            return Err(response::not_found(kind, name));
        };
        how.check(kind, name, &before)?;
        let finalizers = before["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        let bound = std::ptr::eq(kind, &PODS) && !text(&before, "/spec/nodeName").is_empty();
        let graceful = bound && how.grace != Some(0) && !is_finished(&before);
        if finalizers || graceful {
            if before["metadata"].get("deletionTimestamp").is_some() {
                return Ok(before);
            }
            let mut next = (*before).clone();
            next["metadata"]["deletionTimestamp"] = json!(seconds(write.now));
            if graceful {
                next["metadata"]["deletionGracePeriodSeconds"] = json!(how.grace.unwrap_or(30));
            }
            return Ok(self.commit(kind, What::Modified, (next, Some(before)), write));
        }
        Ok(self.commit(kind, What::Deleted, ((*before).clone(), Some(before)), write))
    }

    fn commit(
        &mut self,
        kind: &'static Kind,
        what: What,
        (mut object, before): (Value, Option<Arc<Value>>),
        write: Write,
    ) -> Arc<Value> {
        let rv = self.rv() + 1;
        object["metadata"]["resourceVersion"] = json!(rv.to_string());
        let object = Arc::new(object);
        let id =
            (kind.plural, text(&object, "/metadata/namespace").to_owned(), text(&object, "/metadata/name").to_owned());
        if what == What::Deleted {
            self.objects.remove(&id);
        } else {
            self.objects.insert(id, Arc::clone(&object));
        }
        let Write { by, at, sent, on, admission, .. } = write;
        self.log.push(Change { rv, at, kind, what, object: Arc::clone(&object), before, by, sent, on, admission });
        object
    }
}

pub type Done = Result<Arc<Value>, ApiError>;
