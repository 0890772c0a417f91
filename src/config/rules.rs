//! From single settings to the simple sections, with the rules between settings.

use std::net::SocketAddr;
use std::time::Duration;

use pg_outbox::topic::TopicTemplate;

use super::findings::Problem;
use super::nearest::nearest;
use super::reader::Reader;
use super::sections::{Admin, Log, LogFormat, OnRejected, OnSent, OptionalHeader, Outbox, Reaper, Relay};

/// Below this, an ordinary pause of the machine or of the network would cost a claim.
const TAKEOVER_TIMEOUT_LEAST: Duration = Duration::from_secs(3);

impl Outbox {
    pub(super) fn from(reader: &mut Reader) -> Outbox {
        let table = reader.parsed("outbox", "table", |text| {
            text.parse().map_err(|bad| Problem::new(format!("[outbox] table: {bad}"), ""))
        });
        let topic = reader.parsed("outbox", "topic", topic_template);
        let on_sent = match reader.text("outbox", "on_sent").as_deref() {
            Some("delete") => OnSent::Delete,
            _ => OnSent::Mark,
        };
        let on_rejected = match reader.text("outbox", "on_rejected").as_deref() {
            Some("block-key") => OnRejected::BlockKey,
            _ => OnRejected::DeadLetter,
        };
        let rejections_before_hold =
            u32::try_from(reader.count("outbox", "rejections_before_hold")).unwrap_or(u32::MAX);
        let header = |word: &String| match word.as_str() {
            "aggregate_type" => OptionalHeader::AggregateType,
            _ => OptionalHeader::CreatedAt,
        };
        let mut optional_headers = Vec::new();
        for header in reader.words("outbox", "optional_headers").iter().map(header) {
            if !optional_headers.contains(&header) {
                optional_headers.push(header);
            }
        }
        Outbox { table, topic, on_sent, on_rejected, rejections_before_hold, optional_headers }
    }
}

fn topic_template(text: &str) -> Result<TopicTemplate, Problem> {
    TopicTemplate::parse(text).map_err(|error| {
        Problem::new(format!("[outbox] topic: {error}"), "for instance \"events.{aggregate_type}\"")
    })
}

impl Relay {
    pub(super) fn from(reader: &mut Reader) -> Relay {
        let relay = Relay {
            batch_size: reader.count("relay", "batch_size"),
            batch_bytes: reader.size("relay", "batch_bytes"),
            poll_interval: reader.span("relay", "poll_interval"),
            workers: reader.count("relay", "workers"),
            publish_timeout: reader.span("relay", "publish_timeout"),
            takeover_timeout: reader.span("relay", "takeover_timeout"),
            shutdown_timeout: reader.span("relay", "shutdown_timeout"),
        };
        relay.warn(reader);
        relay
    }

    fn warn(&self, reader: &mut Reader) {
        let place =
            |reader: &Reader, key| reader.place("relay", key).unwrap_or_else(|| reader.default_place());
        if self.shutdown_timeout < self.publish_timeout {
            let place = place(reader, "shutdown_timeout");
            let message =
                "shutdown_timeout is shorter than publish_timeout: a stop while Kafka is slow repeats events";
            reader
                .findings
                .warn(&place, Problem::new(message, "raise shutdown_timeout, or lower publish_timeout"));
        }
        if self.takeover_timeout < TAKEOVER_TIMEOUT_LEAST {
            let place = place(reader, "takeover_timeout");
            let message = "takeover_timeout is so short that an ordinary pause makes others repeat events";
            reader.findings.warn(&place, Problem::new(message, "3s or more; the default is 10s"));
        }
    }
}

impl Reaper {
    pub(super) fn from(reader: &mut Reader) -> Reaper {
        Reaper {
            enabled: reader.flag("reaper", "enabled"),
            retention: reader.span("reaper", "retention"),
            interval: reader.span("reaper", "interval"),
            batch_size: reader.count("reaper", "batch_size"),
            inbox_retention: reader.span("reaper", "inbox_retention"),
            idempotency_retention: reader.span("reaper", "idempotency_retention"),
        }
    }
}

impl Admin {
    pub(super) fn from(reader: &mut Reader) -> Admin {
        let listen = reader.parsed("admin", "listen", |text| match text {
            "" | "off" => Ok(None),
            text => text.parse::<SocketAddr>().map(Some).map_err(|_| {
                let message = format!("[admin] listen is {text:?}, which is not an IP address with a port");
                Problem::new(message, "for instance \"127.0.0.1:10187\", \"[::]:10187\" or \"off\"")
            }),
        });
        if let Some(address) = listen
            && !address.ip().is_loopback()
        {
            let place = reader.place("admin", "listen").unwrap_or_else(|| reader.default_place());
            let message = "[admin] listen is open to other hosts, without a login and without TLS";
            let help = "listen on 127.0.0.1 or [::1], or let only your monitoring and probes reach the port";
            reader.findings.warn(&place, Problem::new(message, help));
        }
        Admin { listen }
    }
}

impl Log {
    pub(super) fn from(reader: &mut Reader) -> Log {
        let level = reader.parsed("log", "level", |text| log_filter(text).map(|()| text.to_owned()));
        let format = match reader.text("log", "format").as_deref() {
            Some("text") => LogFormat::Text,
            Some("json") => LogFormat::Json,
            Some("journald") => LogFormat::Journald,
            _ => LogFormat::Auto,
        };
        Log { level, format }
    }
}

/// `EnvFilter` takes a mistyped level for the name of a module, and would log nothing: a word alone must be a level.
fn log_filter(text: &str) -> Result<(), Problem> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let problem = |level: &str| {
        let help = match nearest(level, LEVELS) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("the levels are {}", LEVELS.join(", ")),
        };
        Problem::new(format!("[log] level: {level:?} is not a level"), help)
    };
    for directive in text.split(',').map(str::trim) {
        let level = directive.rsplit_once('=').map_or(directive, |(_, level)| level);
        let spans = directive.contains('[');
        if !spans && !LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level)) {
            return Err(problem(level));
        }
    }
    match tracing_subscriber::EnvFilter::try_new(text) {
        Ok(_) => Ok(()),
        Err(error) => {
            Err(Problem::new(format!("[log] level: {error}"), "for instance \"info,outbox_relay=debug\""))
        }
    }
}
