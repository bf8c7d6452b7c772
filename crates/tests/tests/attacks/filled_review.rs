//! Reviews of a given size that cost as much memory as possible to read.

use serde_json::Value;

/// A part of a review that is filled with as many values, or bytes, as possible.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Filled {
    Labels,
    ManagedFields,
    FieldsOfAManager,
    Groups,
    Uid,
    Username,
}

pub(crate) const ALL_FILLED: [Filled; 6] =
    [Filled::Labels, Filled::ManagedFields, Filled::FieldsOfAManager, Filled::Groups, Filled::Uid, Filled::Username];

/// A review of this size with one part that is filled.
pub(crate) fn filled(part: Filled, size: usize) -> Vec<u8> {
    const OBJECT: &str = r#"{"request":{"uid":"u","operation":"CREATE","object":{"metadata":{"name":"n2","#;
    let (head, tail) = match part {
        Filled::Labels => (format!("{OBJECT}\"labels\":{{"), r#""last":""}}}}}"#),
        Filled::ManagedFields => (format!("{OBJECT}\"managedFields\":["), "{}]}}}}"),
        Filled::FieldsOfAManager => (
            format!(r#"{OBJECT}"managedFields":[{{"manager":"m","fieldsV1":{{"f:metadata":{{"f:labels":{{"#),
            r#""f:last":{}}}}}]}}}}"#,
        ),
        Filled::Groups => (r#"{"request":{"uid":"u","userInfo":{"groups":["#.to_owned(), r#"""]}}}"#),
        Filled::Uid => (r#"{"request":{"uid":""#.to_owned(), r#"","operation":"CREATE"}}"#),
        Filled::Username => (r#"{"request":{"uid":"u","userInfo":{"username":""#.to_owned(), r#""}}}"#),
    };
    let mut body = head.into_bytes();
    let mut number = 0_u32;
    while body.len() < size - 64 {
        let item = match part {
            Filled::Labels => format!("\"k{number}\":\"\","),
            Filled::ManagedFields => "{},".to_owned(),
            Filled::FieldsOfAManager => format!("\"f:k{number}\":{{}},"),
            Filled::Groups => "\"\",".to_owned(),
            Filled::Uid | Filled::Username => "x".to_owned(),
        };
        body.extend(item.into_bytes());
        number += 1;
    }
    body.extend(tail.bytes());
    serde_json::from_slice::<Value>(&body).expect("valid JSON");
    body
}

/// A review of this size with as many labels as possible.
pub(crate) fn many_values(size: usize) -> Vec<u8> {
    filled(Filled::Labels, size)
}
