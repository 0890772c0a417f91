//! Checks whether a librdkafka property may be set.

use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaConfRes;

use crate::config::properties::{PROTECTED, is_known, is_secret};

/// Checks whether this property may be set to this value.
///
/// # Errors
///
/// The reason, which never contains the value of a secret.
pub fn check(name: &str, value: &str) -> Result<(), String> {
    if let Some((_, reason)) = PROTECTED.iter().find(|(protected, _)| *protected == name) {
        return Err(format!("cannot be set: {reason}"));
    }
    let verdict = ClientConfig::new().set(name, value).create_native_config();
    match verdict {
        Ok(_) if is_known(name) => Ok(()),
        Ok(_) => Err("does not apply to producers".to_owned()),
        Err(KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, ..)) => {
            Err("is not a librdkafka property".to_owned())
        }
        Err(_) if is_secret(name) => Err("has a value that librdkafka rejects".to_owned()),
        Err(KafkaError::ClientConfig(_, reason, ..)) => {
            Err(format!("is rejected by librdkafka: {}", reason.trim_end()))
        }
        Err(_) => Err("has a value that librdkafka rejects".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::properties::{FILES, SECRETS, names};

    #[test]
    fn every_listed_name_is_a_librdkafka_property() {
        let listed = names().chain(PROTECTED.iter().map(|(name, _)| *name)).chain(SECRETS.iter().copied());
        for name in listed.chain(FILES.iter().copied()) {
            let verdict = ClientConfig::new().set(name, "\u{1}").create_native_config();
            let unknown =
                matches!(verdict, Err(KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, ..)));
            assert!(!unknown, "{name}");
            assert!(is_known(name), "{name}");
        }
    }

    #[test]
    fn properties_behind_the_guarantees_cannot_be_set_even_to_the_right_value() {
        for (name, value) in [("acks", "all"), ("enable.idempotence", "true"), ("message.timeout.ms", "0")] {
            assert!(check(name, value).unwrap_err().starts_with("cannot be set: "), "{name}");
        }
    }

    #[test]
    fn tuning_and_security_properties_can_be_set() {
        for (name, value) in [
            ("compression.type", "zstd"),
            ("linger.ms", "5"),
            ("batch.size", "100000"),
            ("message.max.bytes", "5000000"),
            ("client.id", "relay-1"),
            ("security.protocol", "sasl_ssl"),
            ("sasl.mechanism", "SCRAM-SHA-512"),
            ("sasl.password", "x"),
            ("ssl.key.pem", "x"),
        ] {
            assert_eq!(check(name, value), Ok(()), "{name}");
        }
    }

    #[test]
    fn an_error_never_contains_a_secret() {
        for name in SECRETS {
            let Err(reason) = check(name, "hunter2\0") else { panic!("{name}") };
            assert!(!reason.contains("hunter2"), "{reason}");
        }
    }

    #[test]
    fn an_error_about_an_unsupported_property_names_the_alternative() {
        let oauth = names().filter(|name| name.contains("oauthbearer") || name.starts_with("https."));
        for name in oauth {
            let reason = check(name, "oidc").unwrap_err();
            assert!(reason.starts_with("cannot be set: "), "{name}: {reason}");
            assert!(reason.contains("[kafka.oauth]") || name.ends_with(".extensions"), "{name}: {reason}");
        }
        for name in names().filter(|name| name.contains("kerberos")) {
            assert!(check(name, "x").unwrap_err().contains("can be PLAIN, SCRAM-SHA-256"), "{name}");
        }
    }
}
