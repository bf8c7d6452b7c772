//! Logs to stderr, as JSON or as text, from the configured level on. `RUST_LOG` is ignored.

use std::io::{IsTerminal as _, stderr};

use perennial_core::config::settings::{LogFormat, LogLevel, Logging};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use super::traces::{self, Sender};

/// Crates that are too verbose at debug. They stay at info unless the level is trace.
const CHATTY: [&str; 5] = ["h2", "hyper", "hyper_util", "rustls", "tower"];
/// Crates that log the bodies of responses which they cannot decode, or errors that contain them, at
/// several levels. The errors that they return are reported where they are handled.
const LOG_BODIES: [&str; 2] = ["kube_client", "kube_runtime"];
/// A crate that is too verbose at info.
const TALKATIVE: &str = "opentelemetry";

/// Sets up logging and the export of spans. Fails when logging is set up already.
pub fn init(logging: &Logging, spans: &Sender) -> Result<(), TryInitError> {
    let text = is_text(logging.format, stderr().is_terminal());
    subscriber(logging.level, text, stderr).with(spans.layer()).try_init()
}

/// Returns whether lines are written as text.
fn is_text(format: LogFormat, terminal: bool) -> bool {
    match format {
        LogFormat::Auto => terminal,
        LogFormat::Json => false,
        LogFormat::Text => true,
    }
}

fn subscriber<W>(
    level: LogLevel,
    text: bool,
    writer: W,
) -> impl SubscriberInitExt + tracing::Subscriber + for<'a> LookupSpan<'a> + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    let lines = if text {
        lines.with_ansi(false).boxed()
    } else {
        // One object per line with the fields beside the message, which log collectors index
        // without configuration.
        lines.json().flatten_event(true).with_current_span(true).with_span_list(false).boxed()
    };
    tracing_subscriber::registry().with(lines.with_filter(filter(level)))
}

fn filter(level: LogLevel) -> Targets {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let others = if level == LevelFilter::TRACE { level } else { level.min(LevelFilter::INFO) };
    Targets::new()
        .with_default(level)
        .with_targets(CHATTY.map(|name| (name, others)))
        .with_target(TALKATIVE, if level == LevelFilter::TRACE { level } else { level.min(LevelFilter::WARN) })
        .with_targets(LOG_BODIES.map(|name| (name, LevelFilter::OFF)))
        .with_target(traces::TARGET, LevelFilter::OFF)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use rstest::rstest;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    const JSON: bool = false;
    const TEXT: bool = true;

    fn logged(level: LogLevel, text: bool, log: impl FnOnce()) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        tracing::subscriber::with_default(subscriber(level, text, move || writer.clone()), log);
        let bytes = lines.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn json_lines_have_the_fields_beside_the_message() {
        let text = logged(LogLevel::Info, JSON, || tracing::info!(node = "n1", "restored"));
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&line["message"], &line["node"], &line["level"]),
            (&"restored".into(), &"n1".into(), &"INFO".into())
        );
    }

    #[rstest]
    #[case(LogFormat::Auto, true, true)]
    #[case(LogFormat::Auto, false, false)]
    #[case(LogFormat::Json, true, false)]
    #[case(LogFormat::Text, false, true)]
    fn lines_are_text_on_a_terminal(#[case] format: LogFormat, #[case] terminal: bool, #[case] text: bool) {
        assert_eq!(is_text(format, terminal), text);
    }

    #[test]
    fn text_lines_are_plain() {
        let text = logged(LogLevel::Info, TEXT, || tracing::warn!(node = "n1", "restored"));
        assert!(
            text.contains("WARN") && text.ends_with("restored node=\"n1\"\n") && !text.contains('\u{1b}'),
            "{text}"
        );
    }

    #[test]
    fn spans_are_no_part_of_a_line() {
        let text = logged(LogLevel::Trace, JSON, || {
            let span = tracing::info_span!(target: traces::TARGET, "keeper", node = "n1");
            span.in_scope(|| tracing::info!("restored"));
        });
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&line["message"], &line["span"]), (&"restored".into(), &serde_json::Value::Null), "{text}");
    }

    #[rstest]
    #[case(LogLevel::Error, 0)]
    #[case(LogLevel::Info, 1)]
    #[case(LogLevel::Debug, 2)]
    #[case(LogLevel::Trace, 4)]
    fn the_level_is_obeyed_and_others_are_quiet(#[case] level: LogLevel, #[case] lines: usize) {
        let text = logged(level, JSON, || {
            tracing::info!("ours");
            tracing::debug!("ours");
            tracing::debug!(target: "hyper", "theirs");
            tracing::info!(target: "opentelemetry-otlp", "theirs");
        });
        assert_eq!(text.lines().count(), lines, "{text}");
    }

    #[test]
    fn the_bodies_of_responses_are_logged_at_no_level() {
        let text = logged(LogLevel::Trace, JSON, || {
            tracing::warn!(target: "kube_client::client", "{{\"kind\": \"StatefulSetList\"}}");
            tracing::warn!(target: "kube_runtime::watcher", "watch list error with 403: {{\"message\": \"s3cret\"}}");
        });
        assert_eq!(text, "");
    }
}
