//! Rules for single settings and for combinations of settings.

use std::net::SocketAddr;
use std::time::Duration;

use humantime::format_duration;

use relay::topic::TopicAllow;
use settings::choice;
use settings::findings::Problem;
use settings::nearest::nearest;
use settings::reader::Reader;
use settings::setting::Setting;
use settings::size::ByteSize;
use settings::values::Value;

use super::catalogue::{Admin, Relay};

choice! {
    /// The form of log lines.
    LogFormat {
        /// journald under systemd, else text.
        Auto = "auto",
        /// Human-readable lines.
        Text = "text",
        /// One JSON object per line.
        Json = "json",
        /// Journal entries with fields.
        Journald = "journald",
    }
}

/// Below this, an ordinary pause of the machine or the network would end a claim.
const TAKEOVER_TIMEOUT_LEAST: Duration = Duration::from_secs(3);
/// The largest allowed size of all batches together.
const BATCHES_MOST: u64 = 8 << 30;
/// Properties of librdkafka that delay the first attempt or the next one.
const WAITS: [&str; 6] = [
    "linger.ms",
    "queue.buffering.max.ms",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
];
/// Timeouts of single requests in librdkafka, whose own minimum is a few milliseconds.
const REQUESTS: [&str; 3] = ["api.version.request.timeout.ms", "request.timeout.ms", "socket.timeout.ms"];
const REQUEST_LEAST_MS: f64 = 1_000.0;

impl Relay {
    pub(super) fn check(&self, reader: &mut Reader) {
        if self.shutdown_timeout < self.publish_timeout {
            let message = "shutdown_timeout is shorter than publish_timeout, so a shutdown while Kafka is slow redelivers events";
            let help = "increase shutdown_timeout or decrease publish_timeout";
            reader.warn(&Relay::shutdown_timeout, Problem::new(message, help));
        }
        if self.takeover_timeout < TAKEOVER_TIMEOUT_LEAST {
            let message =
                "takeover_timeout is so short that events are redelivered when a relay freezes only briefly";
            let help = "set it to 3s or more; the default is 10s";
            reader.warn(&Relay::takeover_timeout, Problem::new(message, help));
        }
        let bytes = self.batch_bytes.as_u64() * self.workers as u64;
        if bytes > BATCHES_MOST {
            let (bytes, most) = (ByteSize::bytes(bytes), ByteSize::bytes(BATCHES_MOST));
            let message = format!("workers times batch_bytes is {bytes}, but must be at most {most}");
            let help = "decrease one of them: the relay needs about twice this much memory";
            reader.error(&Relay::batch_bytes, Problem::new(message, help));
        }
        self.compare_with_properties(reader);
    }

    /// Properties of librdkafka with which nothing would be sent before the timeout, or no request could succeed.
    fn compare_with_properties(&self, reader: &mut Reader) {
        let most = self.publish_timeout.as_millis() as f64;
        for (name, entry) in reader.entries.table("kafka.properties") {
            let Some(Ok(value)) = entry.raw.text().map(|text| text.trim().parse::<f64>()) else { continue };
            let (is_wrong, message) = if WAITS.contains(&name.as_str()) {
                let timeout = format_duration(self.publish_timeout);
                (
                    value >= most,
                    format!("must be below [relay] publish_timeout ({timeout}), or nothing is sent in time"),
                )
            } else if REQUESTS.contains(&name.as_str()) {
                (
                    value < REQUEST_LEAST_MS,
                    format!("must be at least {REQUEST_LEAST_MS}, or no request succeeds in time"),
                )
            } else {
                continue;
            };
            if is_wrong {
                let message = format!("Kafka property `{name}` is {value} (milliseconds), but {message}");
                reader
                    .findings
                    .error(&entry.place, Problem::new(message, "remove it: the default is suitable"));
            }
        }
    }
}

impl Admin {
    pub(super) fn warn(&self, reader: &mut Reader) {
        if self.listen.is_some_and(|address| !address.ip().is_loopback()) {
            let message = "[admin] listen is open to other hosts, without authentication or TLS";
            let help =
                "listen on 127.0.0.1 or [::1], or allow only your monitoring and probes to access the port";
            reader.warn(&Admin::listen, Problem::new(message, help));
        }
    }
}

/// An address, or `None` for "off".
pub(super) fn listen_address(
    text: &str,
    setting: &Setting,
    reader: &Reader,
) -> Result<Option<SocketAddr>, Problem> {
    if ["", "off"].contains(&text) { Ok(None) } else { Value::from_text(text, setting, reader) }
}

/// The allowed topics, or `None` for an empty text.
pub(super) fn topic_allow(
    text: &str,
    setting: &Setting,
    reader: &Reader,
) -> Result<Option<TopicAllow>, Problem> {
    if text.is_empty() { Ok(None) } else { Value::from_text(text, setting, reader) }
}

/// A word alone must be a level: `EnvFilter` would accept a mistyped level as the name of a module, and log nothing.
pub(super) fn log_filter(text: &str, setting: &Setting, _: &Reader) -> Result<String, Problem> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    for directive in text.split(',').map(str::trim) {
        let level = directive.rsplit_once('=').map_or(directive, |(_, level)| level);
        let spans = directive.contains('[');
        if !spans && !LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level)) {
            let help = match nearest(level, LEVELS) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => format!("the levels are {}", LEVELS.join(", ")),
            };
            return Err(Problem::new(format!("{setting}: {level:?} is not a level"), help));
        }
    }
    match tracing_subscriber::EnvFilter::try_new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => {
            Err(Problem::new(format!("{setting}: {error}"), "for example \"info,outbox_relay=debug\""))
        }
    }
}
