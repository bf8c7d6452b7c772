//! Tables with commas. The first line names the columns: `node,key,value`, `node,labels` (`a=1,b=2` in quotes), or the node
//! and one column for each label key, where an empty cell means that the node does not have it.

use std::collections::BTreeMap;

use super::{Format, Found, Refused, entry};
use crate::keeper::keys::{Kept, Key};

/// Whether a text is a table: its first line is a list of names with commas, the first of them a node's.
pub(super) fn is_csv(text: &str) -> bool {
    let first = text.trim_start_matches('\u{feff}').lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let mut names = first.split(',').map(|name| name.trim().trim_matches('"'));
    names.next().is_some_and(is_node_column) && names.next().is_some_and(|name| !name.is_empty())
}

fn is_node_column(name: &str) -> bool {
    ["node", "nodename", "node_name", "name"].contains(&name.to_ascii_lowercase().as_str())
}

pub(super) fn read(text: &str, file: &str, found: &mut Found) {
    let mut rows = rows(text.trim_start_matches('\u{feff}')).filter(|(_, row)| row.iter().any(|cell| !cell.is_empty()));
    let Some((_, header)) = rows.next() else { return };
    let lower: Vec<String> = header.iter().map(|name| name.to_ascii_lowercase()).collect();
    let triples = lower.len() == 3 && ["key", "label"].contains(&lower[1].as_str()) && lower[2] == "value";
    let packed = lower.len() == 2 && lower[1] == "labels";
    let mut nodes: BTreeMap<String, Result<Kept, Refused>> = BTreeMap::new();
    for (line, row) in rows {
        let origin = format!("{file}, line {line}");
        let mut read = || -> Result<(), String> {
            if row.len() != header.len() {
                return Err(format!("it has {} columns, not {}", row.len(), header.len()));
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
                return Err(format!("node {} is there twice", row[0]));
            }
            if let Ok(kept) = nodes.entry(row[0].clone()).or_insert_with(|| Ok(Kept::new())) {
                for (key, value) in pairs {
                    if kept.insert(Key::Label(key.clone()), value).is_some() {
                        return Err(format!("{key} is there twice for node {}", row[0]));
                    }
                }
            }
            Ok(())
        };
        if let Err(why) = read() {
            // One bad line: nothing of that node is taken.
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

/// `a=1,b=2`, also with semicolons or blanks between them.
fn packed_labels(text: &str) -> Result<Vec<(String, String)>, String> {
    text.split([',', ';', ' '])
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (key, value) = pair.split_once('=').ok_or_else(|| format!("{pair:?} is not key=value"))?;
            Ok((key.to_owned(), value.to_owned()))
        })
        .collect()
}

/// The rows with the numbers of their lines. Cells may be in double quotes, a doubled quote inside them is one.
fn rows(text: &str) -> impl Iterator<Item = (usize, Vec<String>)> {
    let mut rows = Vec::new();
    let (mut row, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    let (mut line, mut begun) = (1, 1);
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        line += usize::from(c == '\n');
        match c {
            '"' if quoted && rest.peek() == Some(&'"') => {
                cell.push('"');
                rest.next();
            }
            '"' => quoted = !quoted,
            ',' if !quoted => row.push(std::mem::take(&mut cell).trim().to_owned()),
            '\n' if !quoted => {
                row.push(std::mem::take(&mut cell).trim().to_owned());
                rows.push((begun, std::mem::take(&mut row)));
                begun = line;
            }
            c => cell.push(c),
        }
    }
    if !cell.is_empty() || !row.is_empty() {
        row.push(cell.trim().to_owned());
        rows.push((begun, row));
    }
    rows.into_iter()
}
