//! Rules for single settings and for combinations of settings.

use std::net::SocketAddr;
use std::time::Duration;

use super::catalogue::{Admin, Relay};
use super::findings::Problem;
use super::outbox::topic_allow::TopicAllow;
use super::reading::nearest::nearest;
use super::reading::reader::Reader;
use super::reading::values::FromText;
use super::setting::Setting;

/// Below this, an ordinary pause of the machine or the network would end a claim.
const TAKEOVER_TIMEOUT_LEAST: Duration = Duration::from_secs(3);

impl Relay {
    pub(super) fn warn(&self, reader: &mut Reader) {
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
    if ["", "off"].contains(&text) { Ok(None) } else { FromText::from_text(text, setting, reader) }
}

/// The allowed topics, or `None` for an empty text.
pub(super) fn topic_allow(
    text: &str,
    setting: &Setting,
    reader: &Reader,
) -> Result<Option<TopicAllow>, Problem> {
    if text.is_empty() { Ok(None) } else { FromText::from_text(text, setting, reader) }
}

impl FromText for SocketAddr {
    fn from_text(text: &str, setting: &Setting, _: &Reader) -> Result<SocketAddr, Problem> {
        text.parse().map_err(|_| {
            let message = format!("{setting} is {text:?}, which is not an IP address with a port");
            Problem::new(message, "for example \"127.0.0.1:10187\", \"[::]:10187\" or \"off\"")
        })
    }
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
