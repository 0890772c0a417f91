//! Determines which changes of the configuration a running relay applies, and which need a restart.
//!
//! A reload never changes the source or the destination of events, nor the tasks and connections of the relay. It applies
//! limits, intervals, secrets and the log level. The catalogue defines the effect of each setting.

use super::catalogue::CATALOGUE;
use super::{Config, Effect, Kafka, Outbox, Property};
use settings::setting::{Section, Setting};

/// A changed setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Such as `relay`.
    pub section: &'static str,
    pub key: String,
    pub effect: Effect,
}

/// Every setting except tables, and whether it differs between two configurations. Twins share an entry.
pub(super) fn compared(old: &Config, new: &Config) -> Vec<(&'static Setting, bool)> {
    /// A section that is used in only one of them differs as a whole.
    fn optional<S: Section>(old: Option<&S>, new: Option<&S>) -> Vec<(&'static Setting, bool)> {
        if let (Some(old), Some(new)) = (old, new) {
            return old.compared(new);
        }
        let is_first = |setting: &&Setting| CATALOGUE.twin(setting).is_none_or(|twin| setting.key < twin.key);
        let settings = S::SETTINGS.iter().filter(|setting| !setting.kind.is_table()).filter(is_first);
        settings.map(|setting| (setting, old.is_some() != new.is_some())).collect()
    }
    [
        old.postgres.compared(&new.postgres),
        old.kafka.compared(&new.kafka),
        optional(old.kafka.oauth.as_ref(), new.kafka.oauth.as_ref()),
        optional(old.kafka.aws.as_ref(), new.kafka.aws.as_ref()),
        old.outbox.compared(&new.outbox),
        old.relay.compared(&new.relay),
        old.reaper.compared(&new.reaper),
        old.admin.compared(&new.admin),
        old.log.compared(&new.log),
    ]
    .concat()
}

/// The differences between two configurations: those of tables after all others.
pub fn changes(old: &Config, new: &Config) -> Vec<Change> {
    let change = |(setting, differs): (&'static Setting, bool)| {
        let other_database = setting.section == "postgres" && !same_database(old, new);
        let effect = if other_database { Effect::Restart } else { setting.effect };
        let is_table = (setting.section, setting.key) == ("outbox", "table");
        let is_changed = if is_table { !old.outbox.table.is_same_table(&new.outbox.table) } else { differs };
        is_changed.then(|| Change { section: setting.section, key: setting.key.to_owned(), effect })
    };
    let mut changes: Vec<Change> = compared(old, new).into_iter().filter_map(change).collect();
    changes.extend(properties(&old.kafka, &new.kafka));
    let envelope = |outbox: &Outbox| (outbox.envelope, outbox.cloudevents_source.clone());
    let same_envelope = envelope(&old.outbox) == envelope(&new.outbox);
    if same_envelope && old.outbox.headers != new.outbox.headers {
        changes.push(Change { section: "outbox", key: "headers".to_owned(), effect: Effect::Restart });
    }
    if old.outbox.table.columns() != new.outbox.table.columns() {
        changes.push(Change { section: "outbox", key: "columns".to_owned(), effect: Effect::Restart });
    }
    changes
}

/// A running relay applies changed secrets if nothing else about the cluster changed.
fn properties(old: &Kafka, new: &Kafka) -> Vec<Change> {
    let mut names: Vec<&String> = old.properties.keys().chain(new.properties.keys()).collect();
    names.sort();
    names.dedup();
    let effect = if same_cluster(old, new) { Effect::Now } else { Effect::Restart };
    let change = |name: &String| Change { section: "kafka.properties", key: name.clone(), effect };
    let differs = |name: &&String| old.properties.get(*name) != new.properties.get(*name);
    names.into_iter().filter(differs).map(change).collect()
}

/// The password and the TLS mode belong to one server, so they must not be used for another one.
fn same_database(old: &Config, new: &Config) -> bool {
    old.postgres.url == new.postgres.url
}

/// Whether at most the values of secrets differ.
fn same_cluster(old: &Kafka, new: &Kafka) -> bool {
    let same = |((name, old), (other, new)): ((&String, &Property), (&String, &Property))| {
        name == other && (old == new || matches!((old, new), (Property::Secret(_), Property::Secret(_))))
    };
    old.bootstrap_servers == new.bootstrap_servers
        && old.oauth == new.oauth
        && old.aws == new.aws
        && old.properties.len() == new.properties.len()
        && old.properties.iter().zip(&new.properties).all(same)
}

impl Config {
    /// This configuration, with the settings of `new` that a running relay can apply.
    pub fn reloaded(&self, new: &Config) -> Config {
        let postgres = if same_database(self, new) { &new.postgres } else { &self.postgres };
        let kafka = if same_cluster(&self.kafka, &new.kafka) { &new.kafka } else { &self.kafka };
        Config {
            postgres: self.postgres.reloaded(postgres),
            kafka: kafka.clone(),
            outbox: self.outbox.reloaded(&new.outbox),
            relay: self.relay.reloaded(&new.relay),
            reaper: self.reaper.reloaded(&new.reaper),
            admin: self.admin.reloaded(&new.admin),
            log: self.log.reloaded(&new.log),
            warnings: self.warnings.clone(),
        }
    }
}
