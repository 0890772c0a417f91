//! The user's configuration, and the changes to it for a measurement.
//!
//! A relay under measurement reads the same file and the same environment as the user's own. The changes are in its
//! environment, which takes precedence. Therefore no secret is written anywhere, and relative file names keep their
//! meaning.

use crate::error::BenchError;
use outbox_relay::config::{self, Config};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The settings of a relay.
#[derive(Clone, Debug)]
pub struct Settings {
    program: PathBuf,
    file: Option<PathBuf>,
    overrides: Vec<(String, String)>,
}

impl Settings {
    /// The settings of this file, or of the environment alone. `program` is the relay binary to measure.
    pub fn new(program: PathBuf, file: Option<PathBuf>) -> Settings {
        Settings { program, file, overrides: Vec::new() }
    }

    /// Changes the value of one setting.
    #[must_use]
    pub fn with(mut self, section: &str, key: &str, value: impl Into<String>) -> Settings {
        let name = format!("{}{section}__{key}", config::catalogue::VARIABLE_PREFIX).to_uppercase();
        self.overrides.retain(|(known, _)| *known != name);
        self.overrides.push((name, value.into()));
        self
    }

    /// Changes the value of one librdkafka property.
    #[must_use]
    pub fn with_kafka_property(self, name: &str, value: impl Into<String>) -> Settings {
        let key = format!("properties__{}", name.replace('.', "_"));
        self.with("kafka", &key, value)
    }

    /// The parsed settings.
    ///
    /// # Errors
    ///
    /// All errors in the settings.
    pub fn load(&self) -> Result<Config, BenchError> {
        let environment = config::environment()
            .filter(|(name, _)| !self.overrides.iter().any(|(known, _)| known == name))
            .chain(self.overrides.iter().cloned());
        config::load(self.file.as_deref(), environment).map_err(|findings| {
            BenchError::Configuration(format!("The configuration is invalid.\n{findings}"))
        })
    }

    /// The binary of the relay.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The arguments that name the file.
    pub fn arguments(&self) -> Vec<OsString> {
        self.file.iter().flat_map(|file| ["--config".into(), file.clone().into_os_string()]).collect()
    }

    /// The additional environment variables of a relay.
    pub fn overrides(&self) -> &[(String, String)] {
        &self.overrides
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_change_takes_precedence() {
        let settings = Settings::new("relay".into(), None)
            .with("postgres", "url", "postgres://localhost/a")
            .with("kafka", "bootstrap_servers", "localhost:9092")
            .with("relay", "workers", "4")
            .with("relay", "workers", "5")
            .with_kafka_property("linger.ms", "7");
        let config = settings.load().unwrap();
        assert_eq!(config.relay.workers, 5);
        assert!(config.kafka.properties.contains_key("linger.ms"));
    }
}
