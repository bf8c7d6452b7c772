//! The CustomResourceDefinitions, generated from the types of the resources.
//!
//! The schema of a KeepPolicy's spec comes from [`perennial_core::keeper::policy::KeepPolicySpec`],
//! that of its status from [`crate::keeper::policy_resource`].

use kube::CustomResourceExt;
use serde_json::Value;

use crate::keeper::policy_resource::KeepPolicyResource;

/// Returns the CustomResourceDefinition of `KeepPolicy`.
pub fn keep_policy_crd() -> Value {
    // There are only mappings with string keys, lists and scalars, which JSON always has.
    let mut crd = serde_json::to_value(KeepPolicyResource::crd()).unwrap_or_default();
    make_structural(&mut crd["spec"]["versions"][0]["schema"]);
    if let Some(names) = crd["spec"]["names"].as_object_mut() {
        names.insert("listKind".to_owned(), "KeepPolicyList".into());
        names.retain(|_, value| value.as_array().is_none_or(|names| !names.is_empty()));
    }
    crd
}

/// Removes the keywords for which Kubernetes has other rules: unknown fields are pruned or refused
/// as the client requests (`fieldValidation`), and an optional field is left out, not null.
/// Joins the lines of descriptions.
fn make_structural(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.remove("nullable");
            fields.remove("title");
            if fields.get("additionalProperties") == Some(&Value::Bool(false)) {
                fields.remove("additionalProperties");
            }
            if let Some(Value::String(text)) = fields.get_mut("description") {
                *text = text.replace('\n', " ");
            }
            fields.values_mut().for_each(make_structural);
        }
        Value::Array(items) => {
            items.retain(|item| !item.is_null());
            items.iter_mut().for_each(make_structural);
        }
        _ => {}
    }
}
