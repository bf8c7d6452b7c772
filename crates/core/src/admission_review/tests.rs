use super::*;
use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;

#[test]
fn base64_is_that_of_the_rfc() {
    let vectors = ["", "f", "fo", "foo", "foob", "fooba", "foobar"].map(|text| base64(text.as_bytes()));

    assert_eq!(vectors, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"]);
}

#[test]
fn a_delete_without_a_name_is_understood() {
    let body = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "operation": "DELETE", "dryRun": null, "object": null, "unknown": 1,
        "userInfo": {"username": "system:node:n1", "groups": ["system:nodes"], "extra": {"x": ["y"]}},
        "resource": {"group": "", "version": "v1", "resource": "nodes"},
        "oldObject": {"metadata": {"name": "n1"}},
    }});

    let Review::Request(request) = read(body.to_string().as_bytes()) else { panic!("not understood") };

    assert_eq!((request.operation.as_str(), request.name, request.dry_run), ("DELETE", None, false));
    assert_eq!(request.user_info.groups, ["system:nodes"]);
    assert_eq!(request.old_object.unwrap()["metadata"]["name"], "n1");
    assert_eq!(request.object, None);
}

#[test]
fn unexpected_reviews_are_answered_with_their_uid() {
    let body = json!({"request": {"uid": "u", "operation": 7}});

    assert_eq!(read(body.to_string().as_bytes()), Review::Malformed { uid: "u".to_owned() });
}

#[test]
fn a_review_without_a_uid_cannot_be_answered() {
    for body in ["", "{}", "[]", "null", r#"{"request":{}}"#, r#"{"request":{"uid":""}}"#, r#"{"request":{"uid":"#] {
        assert_eq!(read(body.as_bytes()), Review::Unreadable, "{body}");
    }
}

#[test]
fn an_answer_without_changes_has_no_patch() {
    let answer: Value = serde_json::from_slice(&write("u", &AdmissionResponse::allowed())).unwrap();

    assert_eq!(
        answer,
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {"uid": "u", "allowed": true}})
    );
}

#[test]
fn a_patch_is_typed_and_encoded() {
    let response = AdmissionResponse::patched(vec![json!({"op": "add", "path": "/a", "value": 1})]).warn("careful");
    let answer: Value = serde_json::from_slice(&write("u", &response)).unwrap();

    assert_eq!(answer["response"]["patchType"], "JSONPatch");
    assert_eq!(answer["response"]["patch"], base64(br#"[{"op":"add","path":"/a","value":1}]"#));
    assert_eq!(answer["response"]["warnings"], json!(["careful"]));
}

#[test]
fn a_refusal_has_a_reason_and_changes_nothing() {
    let response = AdmissionResponse { patch: vec![json!({})], ..AdmissionResponse::denied("no") };
    let answer: Value = serde_json::from_slice(&write("u", &response)).unwrap();

    assert_eq!(answer["response"]["status"]["message"], "no");
    assert!(answer["response"].get("patch").is_none());
}

proptest! {
    #[test]
    fn no_bytes_make_it_fail(body in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = read(&body);
    }
}

fn review(object: &Value) -> Vec<u8> {
    json!({"request": {"uid": "u", "operation": "CREATE", "object": object}}).to_string().into_bytes()
}

fn object_of(body: &[u8]) -> Option<Value> {
    match read(body) {
        Review::Request(request) => request.object,
        _ => None,
    }
}

#[test]
fn only_the_fields_that_handlers_read_are_kept() {
    let object = json!({
        "apiVersion": "v1", "kind": "Node", "unknown": [1, 2],
        "metadata": {"name": "n1", "labels": {"a": "b"}, "managedFields": [{"f": 1}], "ownerReferences": [{"name": "x"}]},
        "spec": {"taints": [{"key": "k"}], "podCIDR": "10.0.0.0/24", "containers": [{"image": "i"}], "affinity": {"x": 1.5}},
        "status": {"nodeInfo": {"machineID": "m"}, "images": [{"names": ["i"]}]},
    });

    let expected = json!({
        "metadata": {"name": "n1", "labels": {"a": "b"}, "ownerReferences": [{"name": "x"}]},
        "spec": {"taints": [{"key": "k"}], "affinity": {"x": 1.5}},
        "status": {"nodeInfo": {"machineID": "m"}},
    });
    assert_eq!(object_of(&review(&object)), Some(expected));
}

#[test]
fn managed_fields_are_reduced_to_the_managers_of_labels() {
    let fields =
        json!({"f:metadata": {"f:labels": {".": {}, "f:a": {}}, "f:annotations": {"f:x": {}}}, "f:spec": {"f:y": {}}});
    let object = json!({"metadata": {"name": "n1", "managedFields": [
        {"manager": "kubelet", "operation": "Update", "fieldsV1": fields},
        {"manager": "other", "fieldsV1": {"f:status": {"f:z": {}}}},
    ]}});

    let expected = json!({"metadata": {"name": "n1", "managedFields": [
        {"manager": "kubelet", "fieldsV1": {"f:metadata": {"f:labels": {"f:a": {}}}}},
    ]}});
    assert_eq!(object_of(&review(&object)), Some(expected));
}

/// An object of 3 MiB in many small values would take 60 MiB when decoded.
#[test]
fn an_object_with_too_many_values_is_not_decoded() {
    let labelled = |count: usize| {
        let labels: serde_json::Map<String, Value> = (0..count).map(|i| (format!("k{i}"), json!(""))).collect();
        review(&json!({"metadata": {"labels": labels}}))
    };

    assert!(object_of(&labelled(1000)).is_some());
    assert_eq!(read(&labelled(MAX_VALUES + 1)), Review::Malformed { uid: "u".to_owned() });
    // Values that are skipped do not count.
    let images: Vec<Value> = (0..2 * MAX_VALUES).map(|i| json!({"names": [i]})).collect();
    assert!(object_of(&review(&json!({"status": {"images": images}}))).is_some());
}

/// Lists that would take far more memory than their bytes.
#[rstest]
#[case::groups(r#"{"request":{"uid":"u","userInfo":{"groups":["#, r#""""#, r"]}}}")]
#[case::managed_fields(r#"{"request":{"uid":"u","object":{"metadata":{"managedFields":["#, "{}", r"]}}}}")]
fn a_list_with_too_many_values_is_not_decoded(#[case] head: &str, #[case] item: &str, #[case] tail: &str) {
    let body = |count: usize| format!("{head}{}{tail}", vec![item; count].join(",")).into_bytes();

    assert!(matches!(read(&body(1000)), Review::Request(_)));
    assert_eq!(read(&body(2 * MAX_VALUES)), Review::Malformed { uid: "u".to_owned() });
}

/// A uid is repeated in the response, so a long one would multiply the memory of a review.
#[test]
fn a_review_with_a_long_uid_cannot_be_answered() {
    let body = |length: usize, operation: Value| {
        json!({"request": {"uid": "u".repeat(length), "operation": operation}}).to_string().into_bytes()
    };

    assert!(matches!(read(&body(MAX_UID, json!("CREATE"))), Review::Request(_)));
    for operation in [json!("CREATE"), json!(7)] {
        assert_eq!(read(&body(MAX_UID + 1, operation)), Review::Unreadable);
    }
    assert_eq!(read_uid(&body(MAX_UID + 1, json!("CREATE"))), None);
}

/// Everything that is kept counts, also outside of the objects.
#[test]
fn the_footprint_includes_every_text() {
    let text = "x".repeat(100_000);
    let requests = [
        json!({"uid": "u", "operation": text}),
        json!({"uid": "u", "subResource": text}),
        json!({"uid": "u", "userInfo": {"username": text}}),
        json!({"uid": "u", "userInfo": {"groups": [text]}}),
        json!({"uid": "u", "resource": {"group": text}}),
        json!({"uid": "u", "object": {"metadata": {"labels": {"a": text}}}}),
    ];
    for request in requests {
        let body = json!({"request": request}).to_string();
        let Review::Request(decoded) = read(body.as_bytes()) else { panic!("not decoded") };
        assert!(decoded.footprint() >= text.len(), "{}", &body[..60]);
    }
}

#[rstest]
#[case::query("?")]
#[case::query_after_a_name("n1?watch=true")]
#[case::subresource("k2/proxy/")]
#[case::parent("../secrets")]
#[case::dots("..")]
#[case::escape("n1%2fproxy")]
#[case::space("n 1")]
#[case::upper("N1")]
#[case::newline("n1\nlevel=error")]
fn a_name_that_no_object_can_have_is_not_passed_on(#[case] name: &str) {
    let malformed = Review::Malformed { uid: "u".to_owned() };
    let whole = |field: &str, value: Value| {
        let mut request = json!({"uid": "u", "operation": "DELETE"});
        request[field] = value;
        read(json!({"request": request}).to_string().as_bytes())
    };
    let named = json!({"metadata": {"name": name}});
    let placed = json!({"metadata": {"name": "n1", "namespace": name}});

    for (field, value) in [
        ("name", json!(name)),
        ("namespace", json!(name)),
        ("object", named.clone()),
        ("oldObject", named),
        ("object", placed),
    ] {
        assert_eq!(whole(field, value), malformed, "{field}");
    }
}

#[test]
fn names_have_the_length_that_the_api_server_accepts() {
    let named = |length: usize| object_of(&review(&json!({"metadata": {"name": "a".repeat(length)}}))).is_some();
    assert!(named(253));
    assert!(!named(254) && !named(300));
    assert!(object_of(&review(&json!({"metadata": {"generateName": "web-", "name": ""}}))).is_some());
}
