//! The configuration in force, without secrets, for the status page.
//!
//! Every type of a setting implements [`Shown`], so a new type decides here whether its values are shown.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use humantime::format_duration;
use hyper::Uri;
use pg_outbox::topic::TopicTemplate;

use crate::config::Config;
use crate::config::catalogue::READABLE;
use crate::config::choices::{ClientAuthentication, Envelope, LogFormat, OnRejected, OnSent};
use crate::config::kafka::Property;
use crate::config::outbox::headers::{HeaderTemplate, Part};
use crate::config::outbox::table::TableName;
use crate::config::outbox::topic_allow::TopicAllow;
use crate::config::password_command::PasswordCommand;
use crate::config::postgres::TlsMode;
use crate::config::secret::{Secret, SecretSource};
use crate::config::size::ByteSize;

const HIDDEN: &str = "hidden";
const HIDDEN_FILE: &str = "hidden, from a file";

/// A setting in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SettingInForce {
    /// The section, such as `relay`.
    pub(crate) section: &'static str,
    /// The key.
    pub(crate) key: String,
    /// The value. A secret is hidden.
    pub(crate) value: String,
}

impl Config {
    /// The settings in force, in the order of the file. Settings without a value are left out, and secrets are hidden.
    pub(crate) fn shown(&self) -> Vec<SettingInForce> {
        let mut shown: Vec<SettingInForce> = Vec::new();
        for (section, key, read) in READABLE {
            if let Some(value) = read(self) {
                shown.push(SettingInForce { section, key: (*key).to_owned(), value });
            }
        }
        let properties = self.kafka.properties.iter().map(|(name, property)| SettingInForce {
            section: "kafka.properties",
            key: name.clone(),
            value: property.shown().unwrap_or_default(),
        });
        let headers = self.outbox.headers.iter().map(|header| SettingInForce {
            section: "outbox.headers",
            key: header.name.clone(),
            value: template(header),
        });
        let columns = self.outbox.table.columns().renamed().map(|(column, name)| SettingInForce {
            section: "outbox.columns",
            key: column.name().to_owned(),
            value: name.to_owned(),
        });
        insert_after(&mut shown, "kafka", properties.collect());
        insert_after(&mut shown, "outbox", headers.chain(columns).collect());
        shown
    }
}

fn insert_after(shown: &mut Vec<SettingInForce>, section: &str, settings: Vec<SettingInForce>) {
    let at = shown.iter().rposition(|setting| setting.section == section).map_or(shown.len(), |at| at + 1);
    shown.splice(at..at, settings);
}

/// The template of a header as in the configuration.
fn template(header: &HeaderTemplate) -> String {
    let mut text = String::new();
    for part in &header.value {
        match part {
            Part::Text(literal) => text.push_str(&literal.replace('{', "{{").replace('}', "}}")),
            placeholder => _ = write!(text, "{{{}}}", placeholder.name()),
        }
    }
    text
}

/// The value of a setting as text, without secrets.
pub(in crate::config) trait Shown {
    /// `None` if the setting has no value.
    fn shown(&self) -> Option<String>;
}

impl<T: Shown> Shown for Option<T> {
    fn shown(&self) -> Option<String> {
        self.as_ref()?.shown()
    }
}

impl Shown for Secret {
    fn shown(&self) -> Option<String> {
        Some(HIDDEN.to_owned())
    }
}

impl Shown for SecretSource {
    fn shown(&self) -> Option<String> {
        let hidden = match self {
            SecretSource::Inline(_) => HIDDEN,
            SecretSource::File(_) => HIDDEN_FILE,
        };
        Some(hidden.to_owned())
    }
}

impl Shown for PasswordCommand {
    fn shown(&self) -> Option<String> {
        Some(HIDDEN.to_owned())
    }
}

impl Shown for Property {
    fn shown(&self) -> Option<String> {
        match self {
            Property::Plain(text) => Some(text.clone()),
            Property::Secret(source) => source.shown(),
        }
    }
}

impl Shown for Duration {
    fn shown(&self) -> Option<String> {
        Some(format_duration(*self).to_string())
    }
}

impl Shown for PathBuf {
    fn shown(&self) -> Option<String> {
        Some(self.display().to_string())
    }
}

macro_rules! shown_by_name {
    ($($choice:ty),*) => {$(
        impl Shown for $choice {
            fn shown(&self) -> Option<String> {
                Some(self.name().to_owned())
            }
        }
    )*};
}
shown_by_name!(ClientAuthentication, Envelope, LogFormat, OnRejected, OnSent, TlsMode);

macro_rules! shown_as_text {
    ($($plain:ty),*) => {$(
        impl Shown for $plain {
            fn shown(&self) -> Option<String> {
                Some(self.to_string())
            }
        }
    )*};
}
shown_as_text!(bool, u32, usize, String, ByteSize, SocketAddr, TableName, TopicAllow, TopicTemplate, Uri);
