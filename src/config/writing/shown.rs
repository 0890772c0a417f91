//! The configuration in force, without secrets, for the status page.

use crate::config::Config;
use settings::setting::Section;

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
        add(&mut shown, &self.postgres);
        add(&mut shown, &self.kafka);
        self.kafka.oauth.iter().for_each(|oauth| add(&mut shown, oauth));
        self.kafka.aws.iter().for_each(|aws| add(&mut shown, aws));
        add(&mut shown, &self.outbox);
        add(&mut shown, &self.relay);
        add(&mut shown, &self.reaper);
        add(&mut shown, &self.admin);
        add(&mut shown, &self.log);
        let properties = self.kafka.properties.iter().map(|(name, property)| SettingInForce {
            section: "kafka.properties",
            key: name.clone(),
            value: property.shown().unwrap_or_default(),
        });
        let headers = self.outbox.headers.iter().map(|header| SettingInForce {
            section: "outbox.headers",
            key: header.name.clone(),
            value: header.template(),
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

fn add<S: Section>(shown: &mut Vec<SettingInForce>, section: &S) {
    let values = section.shown().into_iter().filter_map(|(key, value)| Some((key, value?)));
    shown.extend(values.map(|(key, value)| SettingInForce { section: S::NAME, key: key.to_owned(), value }));
}

fn insert_after(shown: &mut Vec<SettingInForce>, section: &str, settings: Vec<SettingInForce>) {
    let at = shown.iter().rposition(|setting| setting.section == section).map_or(shown.len(), |at| at + 1);
    shown.splice(at..at, settings);
}
