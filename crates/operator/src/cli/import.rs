//! `perennial import`: records from exports, backups and the data of other tools.

mod other_tools;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    io::Read as _,
    path::PathBuf,
    process::ExitCode,
};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use futures::{StreamExt, stream};
use jiff::Timestamp;
use perennial_core::keeper::{
    case::{Case, CaseContext},
    collect::HOLD,
    decide::Restore,
    import::{
        ImportEntry, ImportInput, Refused,
        decide::{ImportDecision, ImportWrite, SkipReason, decide_import},
        read_json_labels, read_json_object, read_object, read_text,
    },
    keys::{Kept, TRUE},
    mark::Mark,
};

use self::other_tools::OtherTools;
use super::{
    Global, block_on,
    edit::{TRIES, is_conflict},
    output::{change_line, print_text},
    terminal::{colours, confirm},
};
use crate::{
    inspect::{diff::changes, progress::Progress, session::Session},
    keeper::{Priority, apply::LoadedRecord},
};

#[derive(Debug, Args)]
pub(super) struct Import {
    /// File to import: an export, a backup of Nodes or ConfigMaps, or YAML, JSON or CSV with labels
    /// of nodes; - reads standard input
    #[arg(short, long, value_name = "FILE")]
    filename: Vec<PathBuf>,
    /// Import the ConfigMaps of another tool in this namespace, and all NodeLabelStates
    #[arg(long, value_name = "NAMESPACE")]
    from: Option<String>,
    /// Format of the data. `auto` recognizes the formats in docs/migrate; `json-labels` reads every
    /// ConfigMap as labels in JSON
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: DataFormat,
    /// Print what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Replace the content of existing records, which is moved to their history
    #[arg(long)]
    force: bool,
    /// Remove this finalizer of another tool from all nodes. Asks first, unless --yes is given
    #[arg(long, value_name = "NAME")]
    remove_finalizer: Option<String>,
    /// Do not ask for confirmation
    #[arg(short, long, requires = "remove_finalizer")]
    yes: bool,
}

/// Format of the data to import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum DataFormat {
    #[default]
    Auto,
    JsonLabels,
}

/// Maximum number of entries that are imported concurrently.
const AT_ONCE: usize = 32;

/// Nodes and records at the start of the import. Saves a request for each object that does not
/// exist.
struct Existing {
    /// Resource version that is newer than every node that did not exist at the start.
    at: u64,
    nodes: BTreeSet<String>,
    records: BTreeSet<String>,
}

/// Result of one entry, with its output.
enum ImportOutcome {
    Imported(String),
    Skipped(String),
    Refused(String),
}

/// Number of entries by result.
#[derive(Default)]
struct ImportTally {
    imported: usize,
    skipped: usize,
    refused: usize,
}

impl ImportTally {
    fn count(&mut self, outcome: ImportOutcome) -> String {
        let (count, text) = match outcome {
            ImportOutcome::Imported(text) => (&mut self.imported, text),
            ImportOutcome::Skipped(text) => (&mut self.skipped, text),
            ImportOutcome::Refused(text) => (&mut self.refused, text),
        };
        *count += 1;
        text
    }
}

impl Import {
    /// Exits with 1 if an entry was refused or a source contains none.
    pub(super) fn execute(self, global: &Global) -> anyhow::Result<ExitCode> {
        if self.filename.is_empty() && self.from.is_none() && self.remove_finalizer.is_none() {
            anyhow::bail!("nothing to import; use -f FILE, or --from NAMESPACE for the data of another tool");
        }
        if self.remove_finalizer.is_some() && !self.dry_run {
            confirm(self.yes, "this removes a finalizer from nodes, which its owner may depend on")?;
        }
        block_on(async {
            let session = global.open_session().await?;
            session.require_operator_settings()?;
            let mut reading = Progress::new("nodes and records", false);
            let other_tools = OtherTools::new(&session.client);
            let (nodes, finalizers) = other_tools.nodes().await?;
            let mut existing = Existing { at: session.cluster.now().await?, nodes, records: BTreeSet::new() };
            let mut known = existing.nodes.clone();
            session
                .each_record(|page| {
                    reading.advance(page.len());
                    known.extend(page.iter().map(|held| held.node_name().to_owned()));
                    existing.records.extend(page.iter().map(|held| held.name().to_owned()));
                    Ok(())
                })
                .await?;
            let mut found = self.find(&other_tools, &known).await?;
            found.settle();
            drop(reading);

            let mut tally = ImportTally { refused: found.refused.len(), ..ImportTally::default() };
            let mut progress = Progress::new("imported", true);
            let mut done =
                stream::iter(&found.entries).map(|entry| self.import(&session, &existing, entry)).buffered(AT_ONCE);
            while let Some(outcome) = done.next().await {
                print_text(&tally.count(outcome?))?;
                progress.advance(1);
            }
            for refused in &found.refused {
                print_text(&format!("refused: {}: {}\n", refused.origin, refused.why))?;
            }
            self.report_finalizers(&other_tools, &finalizers).await?;
            let would = if self.dry_run { "would be " } else { "" };
            let unknown = if found.unknown == 0 {
                String::new()
            } else {
                format!(", {} object(s) of an unknown kind ignored", found.unknown)
            };
            let ImportTally { imported, skipped, refused } = tally;
            print_text(&format!("{imported} {would}imported, {skipped} skipped, {refused} refused{unknown}\n"))?;
            Ok(if refused == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        })
    }

    async fn find(&self, other_tools: &OtherTools, known: &BTreeSet<String>) -> anyhow::Result<ImportInput> {
        let mut found = ImportInput::default();
        for file in &self.filename {
            let (text, name) = if file.as_os_str() == "-" {
                let mut text = String::new();
                std::io::stdin().read_to_string(&mut text).context("could not read standard input")?;
                (text, "standard input".to_owned())
            } else {
                let text =
                    std::fs::read_to_string(file).with_context(|| format!("could not read {}", file.display()))?;
                (text, file.display().to_string())
            };
            let read = match self.format {
                DataFormat::Auto => read_text(&text, &name, known),
                DataFormat::JsonLabels => read_json_labels(&text, &name),
            };
            found.entries.extend(read.entries);
            found.refused.extend(read.refused);
            found.unknown += read.unknown;
        }
        if let Some(namespace) = &self.from {
            let before = found.entries.len() + found.refused.len();
            for object in other_tools.objects(namespace).await? {
                match self.format {
                    DataFormat::Auto => read_object(&object, known, &mut found),
                    DataFormat::JsonLabels => read_json_object(&object, "", &mut found),
                }
            }
            if found.entries.len() + found.refused.len() == before {
                let why = "it contains no data of another tool that can be read".to_owned();
                found.refused.push(Refused { origin: format!("namespace {namespace}"), why });
            }
        }
        Ok(found)
    }

    /// Imports one entry.
    async fn import(
        &self,
        session: &Session,
        existing: &Existing,
        entry: &ImportEntry,
    ) -> anyhow::Result<ImportOutcome> {
        for attempt in 0..TRIES {
            let subject = ImportSubject::read(session, existing, entry, attempt > 0).await?;
            let written = match decide_import(entry, &subject.case, self.force, existing.at) {
                ImportDecision::Refuse(identity) => {
                    return Ok(ImportOutcome::Refused(format!(
                        "refused: {}: node {} is absent, and the file contains no {identity}\n",
                        entry.origin, entry.node
                    )));
                }
                ImportDecision::Skip(reason) => {
                    return Ok(ImportOutcome::Skipped(format!("skipped: node/{}: {}\n", entry.node, skipped(&reason))));
                }
                ImportDecision::Write(written) => written,
            };
            if !self.dry_run {
                match write(session, &subject, &written, entry.hold).await {
                    Err(error) if is_conflict(&error) => continue,
                    done => done?,
                }
            }
            return Ok(ImportOutcome::Imported(self.describe(entry, &written)));
        }
        anyhow::bail!("gave up on the record of node {} after 5 conflicts", entry.node)
    }

    fn describe(&self, entry: &ImportEntry, written: &ImportWrite) -> String {
        let would = if self.dry_run { "would be " } else { "" };
        let mut text = format!("node/{}: {would}imported ({}, {})\n", entry.node, entry.format.as_str(), entry.origin);
        let colours = colours();
        for change in changes(&written.before, &written.record.kept) {
            let _ = writeln!(text, "  {}", change_line(&change, colours));
        }
        if written.left_out > 0 {
            let _ = writeln!(text, "  {} key(s) skipped: not kept by the policy", written.left_out);
        }
        for (key, value) in &written.set {
            let _ = writeln!(text, "  node: set {key}={value}");
        }
        for key in &written.remove {
            let _ = writeln!(text, "  node: remove {key}");
        }
        text
    }

    async fn report_finalizers(
        &self,
        other_tools: &OtherTools,
        finalizers: &BTreeMap<String, Vec<String>>,
    ) -> anyhow::Result<()> {
        for (finalizer, nodes) in finalizers {
            if self.remove_finalizer.as_ref() == Some(finalizer) {
                let would = if self.dry_run { "would be " } else { "" };
                if !self.dry_run {
                    for node in nodes {
                        other_tools.remove_finalizer(node, finalizer).await?;
                    }
                }
                print_text(&format!("finalizer {finalizer} {would}removed from {} node(s)\n", nodes.len()))?;
            } else {
                let some = nodes.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
                print_text(&format!(
                    "finalizer {finalizer} is on {} node(s) ({some}…): without its owner, they cannot be deleted. \
                     To remove it: perennial import --remove-finalizer {finalizer} --yes\n",
                    nodes.len()
                ))?;
            }
        }
        if let Some(named) = self.remove_finalizer.as_ref().filter(|named| !finalizers.contains_key(*named)) {
            print_text(&format!("finalizer {named} is on no node\n"))?;
        }
        Ok(())
    }
}

/// The case of an entry's node, with the ConfigMap of its record.
struct ImportSubject {
    case: Case,
    held: Option<LoadedRecord>,
}

impl ImportSubject {
    /// `afresh`: after a conflict, the lists that were read at the start are not relied on.
    async fn read(session: &Session, existing: &Existing, entry: &ImportEntry, afresh: bool) -> anyhow::Result<Self> {
        let node = if afresh || existing.nodes.contains(&entry.node) { session.node(&entry.node).await? } else { None };
        let policies = session.policies.current();
        let held = match entry.record_name(node.as_ref(), &policies) {
            Some(name) if afresh || existing.records.contains(&name.0) => {
                session.cluster.read_record(&name, Priority::Restore).await?
            }
            _ => None,
        };
        let context = CaseContext { policies: &policies, now: Timestamp::now(), by: "import" };
        let case = entry.case(node, held.as_ref().map(LoadedRecord::share), &context);
        Ok(Self { case, held })
    }
}

async fn write(session: &Session, subject: &ImportSubject, written: &ImportWrite, hold: bool) -> anyhow::Result<()> {
    let next = session.cluster.write_record(subject.held.as_ref(), &written.record, Priority::Restore).await?;
    if hold {
        session.cluster.annotate_record(&next, &BTreeMap::from([(HOLD, Some(TRUE.to_owned()))])).await?;
    }
    let restore = Restore {
        set: Kept::clone(&written.set),
        remove: written.remove.clone(),
        // `change_node` leaves the mark unchanged.
        mark: Mark::default(),
        withheld: BTreeSet::new(),
        waits: true,
    };
    if let Some(node) = subject.case.node().filter(|_| !restore.changes_nothing()) {
        session.cluster.change_node(node, &restore).await?;
    }
    Ok(())
}

fn skipped(reason: &SkipReason) -> String {
    match reason {
        SkipReason::NothingKept => "the policy keeps none of its keys".to_owned(),
        SkipReason::Same => "its record already has the same content".to_owned(),
        SkipReason::HasRecord { sequence } => {
            format!("its record (sequence {sequence}) has other content; --force replaces it")
        }
        SkipReason::Quarantined => {
            "its record is quarantined; --force writes a new one and keeps the old data".to_owned()
        }
        SkipReason::Newer => "its record was written by a newer operator".to_owned(),
    }
}
