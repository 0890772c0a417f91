//! Versions of the relay, as recorded with each migration.

use std::fmt;
use std::str::FromStr;

/// `major.minor.patch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version([u32; 3]);

/// The text is not a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a version of the form major.minor.patch")]
pub struct NotAVersion;

/// The version of this binary, without a pre-release suffix.
const OWN: &str = concat!(
    env!("CARGO_PKG_VERSION_MAJOR"),
    ".",
    env!("CARGO_PKG_VERSION_MINOR"),
    ".",
    env!("CARGO_PKG_VERSION_PATCH")
);

impl Version {
    /// Whether this binary has this version or a later one.
    pub(crate) fn is_met(self) -> bool {
        OWN.parse().is_ok_and(|own: Version| self <= own)
    }
}

/// Which version a binary must be upgraded to that cannot run on a migration with this record.
pub(crate) fn to_upgrade_to(min_relay: Option<Version>) -> String {
    match min_relay.filter(|version| !version.is_met()) {
        Some(version) => format!("{version} or later"),
        None => "the version that applied the migration".to_owned(),
    }
}

impl FromStr for Version {
    type Err = NotAVersion;

    fn from_str(text: &str) -> Result<Version, NotAVersion> {
        let numbers: Result<Vec<u32>, _> = text.split('.').map(str::parse).collect();
        numbers.ok().and_then(|numbers| numbers.try_into().ok()).map(Version).ok_or(NotAVersion)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Version([major, minor, patch]) = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(version("0.9.0") < version("0.10.0"));
        assert!(version("1.0.0") > version("0.99.99"));
        assert!(version("0.0.1").is_met() && version(OWN).is_met() && !version("99.0.0").is_met());
        assert_eq!(version("1.20.3").to_string(), "1.20.3");
    }

    #[test]
    fn other_texts_are_not_versions() {
        for text in ["", "1", "1.2", "1.2.3.4", "1.2.x", "1.2.3-rc.1", "1.2.-3", " 1.2.3"] {
            assert_eq!(text.parse::<Version>(), Err(NotAVersion), "{text:?}");
        }
    }
}
