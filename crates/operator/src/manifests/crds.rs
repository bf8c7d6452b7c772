//! The CustomResourceDefinitions.

use serde_json::{Value, json};

/// The CustomResourceDefinition of `KeepPolicy`.
pub fn keep_policy_crd() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": "keeppolicies.perennial.dev" },
        "spec": {
            "group": "perennial.dev",
            "scope": "Cluster",
            "names": {
                "kind": "KeepPolicy",
                "listKind": "KeepPolicyList",
                "plural": "keeppolicies",
                "singular": "keeppolicy",
                "shortNames": ["kp"],
            },
            "versions": [{
                "name": "v1alpha1",
                "served": true,
                "storage": true,
                "subresources": { "status": {} },
                "additionalPrinterColumns": [
                    { "name": "Priority", "type": "integer", "jsonPath": ".spec.priority" },
                    { "name": "Nodes", "type": "integer", "jsonPath": ".status.nodes",
                      "description": "Nodes that this policy decides about" },
                    { "name": "Records", "type": "integer", "jsonPath": ".status.records",
                      "description": "Those of them that have a record" },
                    { "name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status" },
                    { "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp" },
                ],
                "schema": { "openAPIV3Schema": {
                    "type": "object",
                    "description": "KeepPolicy says what is kept of the nodes that it selects. Where several select a node, \
                        the one of the highest priority decides alone; where none does, the operator's config file.",
                    "required": ["spec"],
                    "properties": {
                        "apiVersion": { "type": "string" },
                        "kind": { "type": "string" },
                        "metadata": { "type": "object" },
                        "spec": keep_policy_spec(),
                        "status": keep_policy_status(),
                    },
                }},
            }],
        },
    })
}

fn patterns(description: &str) -> Value {
    json!({
        "type": "array",
        "maxItems": 256,
        "description": description,
        "items": { "type": "string", "minLength": 1, "maxLength": 317 },
        "x-kubernetes-validations": [{
            "rule": "self.all(p, !p.matches('[\\\\s,=]'))",
            "message": "a pattern is a key, a prefix that ends in a slash, or has * for anything; it holds no space, comma or =",
        }],
    })
}

fn keep_policy_spec() -> Value {
    json!({
        "type": "object",
        "description": "What is kept, and how it is given back. What is left out is as in the operator's config file.",
        "properties": {
            "priority": {
                "type": "integer", "format": "int32", "minimum": -1_000_000, "maximum": 1_000_000, "default": 0,
                "description": "Where several policies select a node the highest priority decides; among equals the first by name.",
            },
            "nodeSelector": {
                "type": "object",
                "description": "Which nodes this policy is for. Empty: all. A node that returns is selected by the labels that it \
                    will be given as well.",
                "properties": {
                    "matchLabels": {
                        "type": "object", "additionalProperties": { "type": "string" },
                        "description": "Labels that a node must have.",
                    },
                    "matchExpressions": {
                        "type": "array", "maxItems": 64,
                        "description": "Conditions on labels, all of which must hold.",
                        "items": {
                            "type": "object",
                            "required": ["key", "operator"],
                            "properties": {
                                "key": { "type": "string", "description": "The label's key." },
                                "operator": { "type": "string", "enum": ["In", "NotIn", "Exists", "DoesNotExist"],
                                    "description": "How the label is compared." },
                                "values": { "type": "array", "maxItems": 64, "items": { "type": "string" },
                                    "description": "The values for In and NotIn." },
                            },
                            "x-kubernetes-validations": [{
                                "rule": "self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0 : !has(self.values) || size(self.values) == 0",
                                "message": "In and NotIn need values; Exists and DoesNotExist have none",
                            }],
                        },
                    },
                },
            },
            "keep": patterns("Label keys that are kept: keys, prefixes that end in a slash, or patterns with *."),
            "drop": patterns("Label keys that are not kept, although a pattern of keep matches them."),
            "annotations": patterns("Annotation keys that are kept."),
            "taints": patterns("Keys of taints that are kept. Taints of starting nodes are never kept."),
            "cordon": { "type": "boolean",
                "description": "Whether a cordon is kept, with its reason (annotation perennial.dev/cordon-reason)." },
            "merge": { "type": "string", "enum": ["keepExisting", "overwrite"],
                "description": "Who wins when a returning node brings another value: the node (keepExisting) or the record (overwrite)." },
            "identity": {
                "type": "string", "maxLength": 400,
                "description": "What makes a node that returns the same node: name, providerID, systemUUID, machineID, label:KEY or annotation:KEY.",
                "x-kubernetes-validations": [{
                    "rule": "self in ['name', 'providerID', 'systemUUID', 'machineID'] || self.matches('^(label|annotation):.+$')",
                    "message": "expected name, providerID, systemUUID, machineID, label:KEY or annotation:KEY",
                }],
            },
            "retention": {
                "type": "string", "maxLength": 32,
                "description": "How long a record is kept whose node is away: 720h, 90m, 1h30m.",
                "x-kubernetes-validations": [{
                    "rule": "self.matches('^([0-9]+(ms|s|m|h))+$')",
                    "message": "expected a duration such as 720h or 1h30m",
                }],
            },
        },
    })
}

fn keep_policy_status() -> Value {
    json!({
        "type": "object",
        "description": "What the operator made of this policy.",
        "properties": {
            "observedGeneration": { "type": "integer", "format": "int64",
                "description": "The generation of the spec that this status is about." },
            "nodes": { "type": "integer", "description": "Nodes that this policy decides about." },
            "records": { "type": "integer", "description": "Those of them that have a record." },
            "conditions": {
                "type": "array",
                "description": "Ready: the policy is in force.",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
                "items": {
                    "type": "object",
                    "required": ["type", "status", "lastTransitionTime", "reason", "message"],
                    "properties": {
                        "type": { "type": "string" },
                        "status": { "type": "string", "enum": ["True", "False", "Unknown"] },
                        "observedGeneration": { "type": "integer", "format": "int64" },
                        "lastTransitionTime": { "type": "string", "format": "date-time" },
                        "reason": { "type": "string" },
                        "message": { "type": "string" },
                    },
                },
            },
        },
    })
}
