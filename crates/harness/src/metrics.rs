//! Metrics in the Prometheus text format.

/// One scrape.
#[derive(Clone, Debug)]
pub struct Metrics(String);

impl Metrics {
    pub fn new(text: String) -> Self {
        Self(text)
    }

    pub fn text(&self) -> &str {
        &self.0
    }

    /// Returns whether there is a sample with this name.
    pub fn has(&self, name: &str) -> bool {
        self.of(name).next().is_some()
    }

    /// Returns the sum over all samples with this name and these labels.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let wanted: Vec<String> = labels.iter().map(|(key, value)| format!("{key}=\"{value}\"")).collect();
        self.of(name)
            .filter(|(set, _)| wanted.iter().all(|label| split(set).any(|has| has == label)))
            .map(|(_, value)| value)
            .sum()
    }

    /// Returns labels and value of each sample with this name.
    fn of(&self, name: &str) -> impl Iterator<Item = (&str, f64)> {
        self.0.lines().filter_map(move |line| {
            let rest = line.strip_prefix(name)?;
            let (set, value) = match rest.strip_prefix('{') {
                Some(rest) => rest.rsplit_once('}')?,
                None if rest.starts_with(' ') => ("", rest),
                None => return None,
            };
            Some((set, value.split_whitespace().next()?.parse().ok()?))
        })
    }
}

/// Splits `a="x",b="y,z"` into labels.
fn split(set: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    set.split(move |c| {
        quoted ^= c == '"';
        c == ',' && !quoted
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_found_by_name_and_labels() {
        let text =
            "# TYPE a counter\na_total{x=\"1\",y=\"p,q\"} 2\na_total{x=\"2\",y=\"p\"} 3 17\na_total_more 9\nb 1.5\n";
        let samples = Metrics::new(text.to_owned());
        assert!((samples.sum("a_total", &[]) - 5.0).abs() < 1e-9);
        assert!((samples.sum("a_total", &[("y", "p,q")]) - 2.0).abs() < 1e-9);
        assert!((samples.sum("b", &[]) - 1.5).abs() < 1e-9);
        assert!(samples.has("b") && !samples.has("a"));
    }
}
