//! Logs to stderr, as JSON or as text, from the configured level on. `RUST_LOG` is ignored.

use perennial_core::config::settings::{Level, LogFormat, Logging};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use super::traces::{self, Sender};

/// Crates that are too verbose at debug. They stay at info unless the level is trace.
const CHATTY: [&str; 6] = ["h2", "hyper", "hyper_util", "rustls", "tower", "kube_client"];
/// A crate that is too verbose at info.
const TALKATIVE: &str = "opentelemetry";

/// Sets up logging and the export of spans. Fails when logging is set up already.
pub fn init(logging: &Logging, spans: &Sender) -> Result<(), TryInitError> {
    subscriber(logging, std::io::stderr).with(spans.layer()).try_init()
}

fn subscriber<W>(
    logging: &Logging,
    writer: W,
) -> impl SubscriberInitExt + tracing::Subscriber + for<'a> LookupSpan<'a> + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    let lines = match logging.format {
        // One object per line with the fields beside the message, which log collectors index without configuration.
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(true).with_span_list(false).boxed(),
        LogFormat::Text => lines.with_ansi(false).boxed(),
    };
    tracing_subscriber::registry().with(lines.with_filter(filter(logging.level)))
}

fn filter(level: Level) -> Targets {
    let level = match level {
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    };
    let others = if level == LevelFilter::TRACE { level } else { level.min(LevelFilter::INFO) };
    Targets::new()
        .with_default(level)
        .with_targets(CHATTY.map(|name| (name, others)))
        .with_target(TALKATIVE, if level == LevelFilter::TRACE { level } else { level.min(LevelFilter::WARN) })
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

    fn logged(logging: &Logging, log: impl FnOnce()) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        tracing::subscriber::with_default(subscriber(logging, move || writer.clone()), log);
        let bytes = lines.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn json_lines_have_the_fields_beside_the_message() {
        let logging = Logging { level: Level::Info, format: LogFormat::Json };
        let text = logged(&logging, || tracing::info!(node = "n1", "restored"));
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&line["message"], &line["node"], &line["level"]),
            (&"restored".into(), &"n1".into(), &"INFO".into())
        );
    }

    #[test]
    fn text_lines_are_plain() {
        let logging = Logging { level: Level::Info, format: LogFormat::Text };
        let text = logged(&logging, || tracing::warn!(node = "n1", "restored"));
        assert!(
            text.contains("WARN") && text.ends_with("restored node=\"n1\"\n") && !text.contains('\u{1b}'),
            "{text}"
        );
    }

    #[test]
    fn spans_are_no_part_of_a_line() {
        let logging = Logging { level: Level::Trace, format: LogFormat::Json };
        let text = logged(&logging, || {
            let span = tracing::info_span!(target: traces::TARGET, "keeper", node = "n1");
            span.in_scope(|| tracing::info!("restored"));
        });
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&line["message"], &line["span"]), (&"restored".into(), &serde_json::Value::Null), "{text}");
    }

    #[rstest]
    #[case(Level::Error, 0)]
    #[case(Level::Info, 1)]
    #[case(Level::Debug, 2)]
    #[case(Level::Trace, 4)]
    fn the_level_is_obeyed_and_others_are_quiet(#[case] level: Level, #[case] lines: usize) {
        let text = logged(&Logging { level, format: LogFormat::Json }, || {
            tracing::info!("ours");
            tracing::debug!("ours");
            tracing::debug!(target: "hyper", "theirs");
            tracing::info!(target: "opentelemetry-otlp", "theirs");
        });
        assert_eq!(text.lines().count(), lines, "{text}");
    }
}
