//! What of a changed configuration a running relay takes up, and what has to wait for a restart.
//!
//! What decides where events come from and go to (the database, the cluster, the table, the topics) never changes under a
//! running relay, nor does what its tasks and connections are made of. Limits, intervals, secrets and the log's level do.

use super::oauth::OAuth;
use super::{Config, Kafka, Property, Reaper, Relay};

/// When a change of a setting takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// With the next batch, round or line.
    Now,
    /// With the next connection to Postgres; what is connected stays.
    NextConnection,
    /// Not before a restart.
    Restart,
}

/// A setting that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its section, such as `relay`.
    pub section: &'static str,
    /// Its key there.
    pub key: String,
    /// When it takes effect.
    pub effect: Effect,
}

pub(super) type Compared = (&'static str, &'static str, Effect, fn(&Config, &Config) -> bool);

/// Every setting but the properties of librdkafka; twins with `_file` are one.
pub(super) const COMPARED: &[Compared] = &[
    ("postgres", "url", Effect::Restart, |a, b| a.postgres.url != b.postgres.url),
    ("postgres", "password", Effect::NextConnection, |a, b| a.postgres.password != b.postgres.password),
    ("postgres", "sslmode", Effect::NextConnection, |a, b| a.postgres.tls.mode != b.postgres.tls.mode),
    ("postgres", "sslrootcert", Effect::NextConnection, |a, b| {
        a.postgres.tls.root_cert != b.postgres.tls.root_cert
    }),
    ("postgres", "sslcert", Effect::NextConnection, |a, b| {
        a.postgres.tls.client_cert != b.postgres.tls.client_cert
    }),
    ("postgres", "sslkey", Effect::NextConnection, |a, b| {
        a.postgres.tls.client_key != b.postgres.tls.client_key
    }),
    ("postgres", "connect_timeout", Effect::Restart, |a, b| {
        a.postgres.connect_timeout != b.postgres.connect_timeout
    }),
    ("postgres", "prepared_statements", Effect::Restart, |a, b| {
        a.postgres.prepared_statements != b.postgres.prepared_statements
    }),
    ("postgres", "application_name", Effect::Restart, |a, b| {
        a.postgres.application_name != b.postgres.application_name
    }),
    ("kafka", "bootstrap_servers", Effect::Restart, |a, b| {
        a.kafka.bootstrap_servers != b.kafka.bootstrap_servers
    }),
    ("kafka.oauth", "token_url", Effect::Restart, |a, b| differs(a, b, |oauth| &oauth.token_url)),
    ("kafka.oauth", "client_id", Effect::Restart, |a, b| differs(a, b, |oauth| &oauth.client_id)),
    ("kafka.oauth", "client_secret", Effect::Restart, |a, b| differs(a, b, |oauth| &oauth.client_secret)),
    ("kafka.oauth", "client_authentication", Effect::Restart, |a, b| {
        differs(a, b, |oauth| &oauth.client_authentication)
    }),
    ("kafka.oauth", "scope", Effect::Restart, |a, b| differs(a, b, |oauth| &oauth.scope)),
    ("kafka.oauth", "audience", Effect::Restart, |a, b| differs(a, b, |oauth| &oauth.audience)),
    ("kafka.oauth", "ca_location", Effect::Restart, |a, b| differs(a, b, |oauth| &oauth.ca_location)),
    ("outbox", "table", Effect::Restart, |a, b| a.outbox.table != b.outbox.table),
    ("outbox", "topic", Effect::Restart, |a, b| a.outbox.topic != b.outbox.topic),
    ("outbox", "on_sent", Effect::Restart, |a, b| a.outbox.on_sent != b.outbox.on_sent),
    ("outbox", "on_rejected", Effect::Now, |a, b| a.outbox.on_rejected != b.outbox.on_rejected),
    ("outbox", "rejections_before_hold", Effect::Now, |a, b| {
        a.outbox.rejections_before_hold != b.outbox.rejections_before_hold
    }),
    ("outbox", "optional_headers", Effect::Restart, |a, b| {
        a.outbox.optional_headers != b.outbox.optional_headers
    }),
    ("relay", "batch_size", Effect::Now, |a, b| a.relay.batch_size != b.relay.batch_size),
    ("relay", "batch_bytes", Effect::Now, |a, b| a.relay.batch_bytes != b.relay.batch_bytes),
    ("relay", "poll_interval", Effect::Now, |a, b| a.relay.poll_interval != b.relay.poll_interval),
    ("relay", "workers", Effect::Restart, |a, b| a.relay.workers != b.relay.workers),
    ("relay", "publish_timeout", Effect::Now, |a, b| a.relay.publish_timeout != b.relay.publish_timeout),
    ("relay", "takeover_timeout", Effect::Restart, |a, b| {
        a.relay.takeover_timeout != b.relay.takeover_timeout
    }),
    ("relay", "shutdown_timeout", Effect::Now, |a, b| a.relay.shutdown_timeout != b.relay.shutdown_timeout),
    ("reaper", "enabled", Effect::Restart, |a, b| a.reaper.enabled != b.reaper.enabled),
    ("reaper", "retention", Effect::Now, |a, b| a.reaper.retention != b.reaper.retention),
    ("reaper", "interval", Effect::Now, |a, b| a.reaper.interval != b.reaper.interval),
    ("reaper", "batch_size", Effect::Now, |a, b| a.reaper.batch_size != b.reaper.batch_size),
    ("reaper", "inbox_retention", Effect::Now, |a, b| a.reaper.inbox_retention != b.reaper.inbox_retention),
    ("reaper", "idempotency_retention", Effect::Now, |a, b| {
        a.reaper.idempotency_retention != b.reaper.idempotency_retention
    }),
    ("admin", "listen", Effect::Restart, |a, b| a.admin.listen != b.admin.listen),
    ("log", "level", Effect::Now, |a, b| a.log.level != b.log.level),
    ("log", "format", Effect::Restart, |a, b| a.log.format != b.log.format),
];

fn differs<T: PartialEq>(a: &Config, b: &Config, part: fn(&OAuth) -> &T) -> bool {
    a.kafka.oauth.as_ref().map(part) != b.kafka.oauth.as_ref().map(part)
}

/// What differs between two configurations, in the order of the file.
pub fn changes(old: &Config, new: &Config) -> Vec<Change> {
    let change = |&(section, key, effect, differs): &Compared| {
        let waits = section == "postgres" && !same_database(old, new);
        let effect = if waits { Effect::Restart } else { effect };
        differs(old, new).then(|| Change { section, key: key.to_owned(), effect })
    };
    let mut changes: Vec<Change> = COMPARED.iter().filter_map(change).collect();
    changes.extend(properties(&old.kafka, &new.kafka));
    changes
}

/// A secret that changes is taken up; what was not there, or is no secret, has to wait.
fn properties(old: &Kafka, new: &Kafka) -> Vec<Change> {
    let mut names: Vec<&String> = old.properties.keys().chain(new.properties.keys()).collect();
    names.sort();
    names.dedup();
    let effect = if same_cluster(old, new) { Effect::Now } else { Effect::Restart };
    let change = |name: &String| Change { section: "kafka.properties", key: name.clone(), effect };
    let differs = |name: &&String| old.properties.get(*name) != new.properties.get(*name);
    names.into_iter().filter(differs).map(change).collect()
}

/// A password, and whether TLS is asked for, belong to the server that they are meant for.
fn same_database(old: &Config, new: &Config) -> bool {
    old.postgres.url == new.postgres.url
}

/// Only values of secrets differ.
fn same_cluster(old: &Kafka, new: &Kafka) -> bool {
    let same = |((name, old), (other, new)): ((&String, &Property), (&String, &Property))| {
        name == other && (old == new || matches!((old, new), (Property::Secret(_), Property::Secret(_))))
    };
    old.bootstrap_servers == new.bootstrap_servers
        && old.oauth == new.oauth
        && old.properties.len() == new.properties.len()
        && old.properties.iter().zip(&new.properties).all(same)
}

impl Config {
    /// This configuration with all of `new` that a running relay takes up.
    pub fn reloaded(&self, new: &Config) -> Config {
        let mut config = self.clone();
        if same_database(self, new) {
            config.postgres = self.postgres.with_secrets_of(&new.postgres);
        }
        if same_cluster(&self.kafka, &new.kafka) {
            config.kafka = new.kafka.clone();
        }
        config.outbox.on_rejected = new.outbox.on_rejected;
        config.outbox.rejections_before_hold = new.outbox.rejections_before_hold;
        config.relay = Relay {
            workers: self.relay.workers,
            takeover_timeout: self.relay.takeover_timeout,
            ..new.relay.clone()
        };
        config.reaper = Reaper { enabled: self.reaper.enabled, ..new.reaper.clone() };
        config.log.level.clone_from(&new.log.level);
        config
    }
}
