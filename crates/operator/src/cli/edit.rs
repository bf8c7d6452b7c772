//! `perennial rollback`, `forget`, `restore` and `hold`: what people change by hand, through the same pure plans and the
//! same conditional writes as the operator's.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitCode,
};

use anyhow::Context as _;
use clap::Args;
use perennial_core::keeper::{
    case::Case,
    collect::HOLD,
    commands::{forget, restore_now, rollback},
    decide::Restore,
    keys::TRUE,
    mark::Mark,
    record::{Entry, Record},
    stored_record::Stored,
};

use super::{
    Global, block_on,
    output::pairs,
    session::{Look, Session},
};
use crate::{keeper::apply::Held, runtime::error_category::Category};

/// So often a change is decided again when somebody was faster.
pub(super) const TRIES: usize = 5;

#[derive(Debug, Args)]
pub(super) struct Rollback {
    /// The node's name; also of a node that is away
    #[arg(add = super::complete::recorded())]
    node: String,
    /// The sequence of the state to go back to (see `perennial show`). Without it: the one before
    #[arg(long, value_name = "SEQUENCE")]
    to: Option<u64>,
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
pub(super) struct Forget {
    /// The node's name
    #[arg(add = super::complete::recorded())]
    node: String,
    /// Do it without asking
    #[arg(short, long)]
    yes: bool,
}

#[derive(Debug, Args)]
pub(super) struct RestoreNow {
    /// The node's name
    #[arg(add = super::complete::recorded())]
    node: String,
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
pub(super) struct Hold {
    /// The node's name; also of a node that is away
    #[arg(add = super::complete::recorded())]
    node: String,
    /// Let the record be collected again
    #[arg(long)]
    release: bool,
}

/// The case of a node that has a record, read for one attempt.
struct Subject {
    case: Case,
    held: Held,
    /// A resourceVersion at which the node was absent.
    absent_at: Option<u64>,
}

impl Subject {
    async fn read(session: &Session, name: &str) -> anyhow::Result<Self> {
        let node = session.node(name).await?;
        let absent_at = match node {
            Some(_) => None,
            None => Some(session.cluster.now().await?),
        };
        let held = session.record(name, node.as_ref()).await?;
        let Look { case, held } = session.pair(node, held);
        let held = held.with_context(|| format!("there is no record for node {name}"))?;
        Ok(Self { case, held, absent_at })
    }

    fn record(&self) -> anyhow::Result<Record> {
        match self.held.stored() {
            Stored::Good(record) => Ok((**record).clone()),
            Stored::Bad { fault, .. } => anyhow::bail!("record {} cannot be trusted: {fault}", self.held.name()),
        }
    }

    /// A node that is away: what a person says now is newer than any last state of it that an operator still remembers.
    fn outlast(&self, record: &mut Record) {
        record.node.resource_version = record.node.resource_version.max(self.absent_at.unwrap_or_default());
    }
}

impl Rollback {
    pub(super) fn execute(self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let session = Session::open(global).await?;
            session.judges_as_the_operator()?;
            // Chosen once: a try that ends between its two writes has changed the history.
            let mut chosen = None;
            for _ in 0..TRIES {
                let subject = Subject::read(&session, &self.node).await?;
                let record = subject.record()?;
                let entry = match &chosen {
                    Some(entry) => entry,
                    None => chosen.insert(self.entry(&record)?.clone()),
                };
                let mut change = rollback(&subject.case, &record, entry);
                subject.outlast(&mut change.record);
                println!("record: {} -> {}", pairs(&record.kept), pairs(&change.record.kept));
                for (key, value) in &change.set {
                    println!("node:   set {key}={value}");
                }
                for key in &change.remove {
                    println!("node:   remove {key}");
                }
                if self.dry_run {
                    return Ok(ExitCode::SUCCESS);
                }
                let restore = Restore {
                    set: change.set,
                    remove: change.remove,
                    // The mark stays as it is: see `write_node`.
                    mark: Mark::default(),
                    withheld: BTreeSet::new(),
                    waits: true,
                };
                match write(&session, &subject, &change.record, Some(&restore)).await {
                    Err(error) if is_conflict(&error) => {}
                    done => {
                        done?;
                        println!("node/{} rolled back to {}", self.node, entry.sequence);
                        return Ok(ExitCode::SUCCESS);
                    }
                }
            }
            anyhow::bail!("node {} kept changing meanwhile; nothing was decided", self.node)
        })
    }

    fn entry<'a>(&self, record: &'a Record) -> anyhow::Result<&'a Entry> {
        let known = || record.history.iter().map(|entry| entry.sequence.to_string()).collect::<Vec<_>>().join(", ");
        match self.to {
            None => record.history.first().context("the record has no history"),
            Some(to) => record
                .history
                .iter()
                .find(|entry| entry.sequence == to)
                .with_context(|| format!("the history has no {to}; it has: {}", known())),
        }
    }
}

impl Forget {
    pub(super) fn execute(self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let session = Session::open(global).await?;
            session.judges_as_the_operator()?;
            for _ in 0..TRIES {
                let subject = Subject::read(&session, &self.node).await?;
                if !self.yes {
                    anyhow::bail!("this forgets what is kept for node {}, history included: say --yes", self.node);
                }
                let record = match subject.held.stored() {
                    Stored::Good(record) => (**record).clone(),
                    // What cannot be read is let go of at a person's word.
                    Stored::Bad { .. } => {
                        session.cluster.delete_record(&subject.held).await?;
                        println!("record {} deleted", subject.held.name());
                        return Ok(ExitCode::SUCCESS);
                    }
                };
                let mut forgotten = forget(&subject.case, &record);
                subject.outlast(&mut forgotten);
                match write(&session, &subject, &forgotten, None).await {
                    Err(error) if is_conflict(&error) => {}
                    done => {
                        done?;
                        println!("node/{} forgotten", self.node);
                        return Ok(ExitCode::SUCCESS);
                    }
                }
            }
            anyhow::bail!("the record of node {} kept changing meanwhile", self.node)
        })
    }
}

impl RestoreNow {
    pub(super) fn execute(self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let session = Session::open(global).await?;
            session.judges_as_the_operator()?;
            for _ in 0..TRIES {
                let subject = Subject::read(&session, &self.node).await?;
                let Some(node) = subject.case.node() else {
                    anyhow::bail!("node {} is away: its record is given back when it returns", self.node);
                };
                subject.record()?;
                let Some(restore) = restore_now(&subject.case) else {
                    println!("node/{} has everything that its record has", self.node);
                    return Ok(ExitCode::SUCCESS);
                };
                println!("node:   set {}", pairs(&restore.set));
                if self.dry_run {
                    return Ok(ExitCode::SUCCESS);
                }
                match session.cluster.patch_node(node, &restore).await {
                    Err(error) if error.category() == Category::Conflict => {}
                    done => {
                        done?;
                        println!("node/{} restored", self.node);
                        return Ok(ExitCode::SUCCESS);
                    }
                }
            }
            anyhow::bail!("node {} kept changing meanwhile", self.node)
        })
    }
}

impl Hold {
    pub(super) fn execute(self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let session = Session::open(global).await?;
            let node = session.node(&self.node).await?;
            let held = session.record(&self.node, node.as_ref()).await?;
            let held = held.with_context(|| format!("there is no record for node {}", self.node))?;
            let value = (!self.release).then(|| TRUE.to_owned());
            session.cluster.annotate_record(&held, &BTreeMap::from([(HOLD, value)])).await?;
            println!("record {} {}", held.name(), if self.release { "released" } else { "held" });
            Ok(ExitCode::SUCCESS)
        })
    }
}

/// The record first, then the node: in between the controller finds the record current.
async fn write(session: &Session, subject: &Subject, record: &Record, restore: Option<&Restore>) -> anyhow::Result<()> {
    use crate::runtime::budget::Priority;
    session.cluster.write_record(Some(&subject.held), record, Priority::Restore).await?;
    if let (Some(node), Some(restore)) = (subject.case.node(), restore)
        && !restore.changes_nothing()
    {
        session.cluster.change_node(node, restore).await?;
    }
    Ok(())
}

pub(super) fn is_conflict(error: &anyhow::Error) -> bool {
    error.downcast_ref::<crate::keeper::apply::Error>().is_some_and(|error| error.category() == Category::Conflict)
}
