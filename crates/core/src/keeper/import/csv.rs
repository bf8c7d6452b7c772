//! CSV files. The header is `node,key,value`, `node,labels` (`a=1,b=2` in quotes), or `node` and
//! one column for each label key, where an empty cell means that the node does not have the label.

use std::collections::BTreeMap;

use super::{Format, ImportInput, Refused, entry};
use crate::keeper::keys::{Kept, Key};

/// Returns whether a text is CSV: its first line is a list of names, and the first name is that of
/// the node column.
pub(super) fn is_csv(text: &str) -> bool {
    let first = text.trim_start_matches('\u{feff}').lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let mut names = first.split(',').map(|name| name.trim().trim_matches('"'));
    names.next().is_some_and(is_node_column) && names.next().is_some_and(|name| !name.is_empty())
}

fn is_node_column(name: &str) -> bool {
    ["node", "nodename", "node_name", "name"].contains(&name.to_ascii_lowercase().as_str())
}

pub(super) fn read(text: &str, file: &str, found: &mut ImportInput) {
    let mut rows = rows(text.trim_start_matches('\u{feff}'));
    let Some((_, header)) = rows.next() else { return };
    let lower: Vec<String> = header.iter().map(|name| name.to_ascii_lowercase()).collect();
    let triples = lower.len() == 3 && ["key", "label"].contains(&lower[1].as_str()) && lower[2] == "value";
    let packed = lower.len() == 2 && lower[1] == "labels";
    let mut nodes: BTreeMap<String, Result<Kept, Refused>> = BTreeMap::new();
    for (line, row) in rows {
        let origin = format!("{file}, line {line}");
        let mut read = || -> Result<(), String> {
            if row.len() != header.len() {
                return Err(format!("expected {} columns, got {}", header.len(), row.len()));
            }
            let pairs: Vec<(String, String)> = if triples {
                vec![(row[1].clone(), row[2].clone())]
            } else if packed {
                packed_labels(&row[1])?
            } else {
                header
                    .iter()
                    .zip(&row)
                    .skip(1)
                    .filter(|(_, cell)| !cell.is_empty())
                    .map(|(k, v)| (k.clone(), v.clone()))
                    .collect()
            };
            if !triples && nodes.contains_key(&row[0]) {
                return Err(format!("node {} is listed twice", row[0]));
            }
            if let Ok(kept) = nodes.entry(row[0].clone()).or_insert_with(|| Ok(Kept::new())) {
                for (key, value) in pairs {
                    if kept.insert(Key::Label(key.clone()), value).is_some() {
                        return Err(format!("{key} is listed twice for node {}", row[0]));
                    }
                }
            }
            Ok(())
        };
        if let Err(why) = read() {
            // One bad line refuses the whole node.
            let node = row.first().cloned().unwrap_or_default();
            let refused = Refused { origin, why };
            match nodes.get_mut(&node) {
                Some(Err(_)) => found.refused.push(refused),
                Some(kept) => *kept = Err(refused),
                None => drop(nodes.insert(node, Err(refused))),
            }
        }
    }
    for (node, kept) in nodes {
        let origin = format!("{file}, {node}");
        match kept {
            Ok(kept) => found.take(&origin, entry(&node, kept, Format::Csv, &origin)),
            Err(refused) => found.refused.push(refused),
        }
    }
}

/// Parses `a=1,b=2`. Semicolons and blanks also separate labels.
fn packed_labels(text: &str) -> Result<Vec<(String, String)>, String> {
    text.split([',', ';', ' '])
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (key, value) = pair.split_once('=').ok_or_else(|| format!("{pair:?} is not key=value"))?;
            Ok((key.to_owned(), value.to_owned()))
        })
        .collect()
}

/// Returns the rows with the numbers of their lines. Rows without content are skipped.
fn rows(text: &str) -> impl Iterator<Item = (usize, Vec<String>)> {
    let mut options = csv::ReaderBuilder::new();
    let reader = options.has_headers(false).flexible(true).trim(csv::Trim::All).from_reader(text.as_bytes());
    // Reading from memory cannot fail, and the cells of a string are strings.
    let records = reader.into_records().filter_map(Result::ok);
    records.filter(|record| record.iter().any(|cell| !cell.is_empty())).map(|record| {
        let start = record.position().map_or((0, 1), |position| (position.byte(), position.line()));
        let (byte, line) = (usize::try_from(start.0).unwrap_or(0), usize::try_from(start.1).unwrap_or(1));
        // The position is that of the empty lines before the record.
        let empty = text.get(byte..).unwrap_or_default().bytes().take_while(|byte| b"\r\n".contains(byte));
        (line + empty.filter(|byte| *byte == b'\n').count(), record.iter().map(str::to_owned).collect())
    })
}
