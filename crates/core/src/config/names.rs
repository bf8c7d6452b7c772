//! Syntax of names in Kubernetes: DNS labels and subdomains, label keys and values.

/// Returns whether this is a DNS label (RFC 1123), such as the name of a namespace.
pub fn is_dns_label(text: &str) -> bool {
    text.len() <= 63 && is_word(text, |c| c.is_ascii_lowercase() || c.is_ascii_digit(), |c| c == '-')
}

/// Returns whether this is a DNS subdomain (RFC 1123), such as the part of a label key before the
/// slash.
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253
        && text.split('.').all(|part| is_word(part, |c| c.is_ascii_lowercase() || c.is_ascii_digit(), |c| c == '-'))
}

/// Returns whether this is the key of a label, annotation or taint: `name` or `domain/name`.
pub fn is_label_key(text: &str) -> bool {
    match text.split_once('/') {
        Some((domain, name)) => is_dns_subdomain(domain) && is_label_name(name),
        None => is_label_name(text),
    }
}

/// Returns whether this is the key of an annotation. Unlike the domain of a label, that of an
/// annotation may have upper-case letters.
pub fn is_annotation_key(text: &str) -> bool {
    is_label_key(&text.to_ascii_lowercase())
}

/// The effects of a taint that the API server accepts.
pub const TAINT_EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// Returns whether this is the value of a label. The empty string is one.
pub fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_label_name(text)
}

/// Returns whether this is the effect of a taint.
pub fn is_taint_effect(text: &str) -> bool {
    TAINT_EFFECTS.contains(&text)
}

fn is_label_name(text: &str) -> bool {
    text.len() <= 63 && is_word(text, |c| c.is_ascii_alphanumeric(), |c| matches!(c, '-' | '_' | '.'))
}

/// Returns whether the text is not empty, starts and ends with an `edge` character, and has only
/// `edge` and `inner` ones.
fn is_word(text: &str, edge: impl Fn(char) -> bool, inner: impl Fn(char) -> bool) -> bool {
    text.starts_with(&edge) && text.ends_with(&edge) && text.chars().all(|c| edge(c) || inner(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("perennial-system", true)]
    #[case("a", true)]
    #[case("1a", true)]
    #[case("", false)]
    #[case("-a", false)]
    #[case("a-", false)]
    #[case("A", false)]
    #[case("a.b", false)]
    #[case("ä", false)]
    fn dns_labels(#[case] text: &str, #[case] valid: bool) {
        assert_eq!(is_dns_label(text), valid);
    }

    #[rstest]
    #[case("disk", true)]
    #[case("Disk_1.x", true)]
    #[case("example.com/disk", true)]
    #[case("example.com/", false)]
    #[case("/disk", false)]
    #[case("Example.com/disk", false)]
    #[case("a/b/c", false)]
    #[case("", false)]
    #[case("a b", false)]
    fn label_keys(#[case] text: &str, #[case] valid: bool) {
        assert_eq!(is_label_key(text), valid);
    }

    #[rstest]
    #[case("Example.COM/Owner", true)]
    #[case("example.com/owner", true)]
    #[case("Example.com/", false)]
    #[case("a/b/c", false)]
    fn annotation_keys(#[case] text: &str, #[case] valid: bool) {
        assert_eq!(is_annotation_key(text), valid);
    }

    #[test]
    fn lengths_are_limited() {
        assert!(is_dns_label(&"a".repeat(63)) && !is_dns_label(&"a".repeat(64)));
        assert!(is_label_value(&"a".repeat(63)) && !is_label_value(&"a".repeat(64)));
        assert!(is_label_value(""));
        let domain = ["a".repeat(63), "a".repeat(63), "a".repeat(63), "a".repeat(61)].join(".");
        assert!(is_label_key(&format!("{domain}/k")) && !is_label_key(&format!("{domain}a/k")));
    }
}
