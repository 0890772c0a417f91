//! Tests of the whole configuration: loaded values and findings.

mod aws;
mod columns;
mod connection;
mod environment;
mod example;
mod findings;
mod headers;
mod kafka;
mod libpq;
mod manual;
mod nearest;
mod oauth;
mod page;
mod reload;
mod secrets;
mod shown;
mod size;
mod table;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::{Config, Findings, load};

/// A minimal configuration.
const LEAST: &str =
    "[postgres]\nurl = 'postgres://relay@localhost/app'\n[kafka]\nbootstrap_servers = 'localhost:9092'\n";

/// A folder with a configuration file, and an environment.
struct Case {
    folder: tempfile::TempDir,
    environment: Vec<(String, String)>,
    has_file: bool,
}

impl Case {
    fn new(text: &str) -> Case {
        let case = Case { folder: tempfile::tempdir().unwrap(), environment: Vec::new(), has_file: true };
        case.file("config.toml", text)
    }

    /// Only the environment.
    fn without_file() -> Case {
        Case { folder: tempfile::tempdir().unwrap(), environment: Vec::new(), has_file: false }
    }

    fn file(self, name: &str, content: impl AsRef<[u8]>) -> Case {
        let path = self.folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        self.mode(name, 0o600)
    }

    fn mode(self, name: &str, mode: u32) -> Case {
        std::fs::set_permissions(self.path(name), Permissions::from_mode(mode)).unwrap();
        self
    }

    fn env(mut self, name: &str, value: &str) -> Case {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Uses a subfolder as systemd's folder of credentials.
    fn credentials(self, folder: &str) -> Case {
        let path = self.path(folder);
        self.env("CREDENTIALS_DIRECTORY", path.to_str().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn load(&self) -> Result<Config, Findings> {
        let path = self.path("config.toml");
        load(self.has_file.then_some(path.as_path()), self.environment.clone().into_iter())
    }

    /// The printed findings, without the path of the folder.
    fn findings(&self) -> Vec<String> {
        let findings = match self.load() {
            Ok(config) => config.warnings,
            Err(findings) => findings,
        };
        let folder = format!("{}/", self.folder.path().display());
        findings.iter().map(|finding| finding.to_string().replace(&folder, "")).collect()
    }

    /// Asserts that this is the only finding.
    fn assert_finding(&self, expected: &str) {
        assert_eq!(self.findings(), [expected], "{}", self.findings().join("\n"));
    }
}

/// The minimal configuration, with additional text.
fn with(text: &str) -> Case {
    Case::new(&format!("{LEAST}{text}"))
}
