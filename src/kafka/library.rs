//! The Kafka client inside of this binary: its version and what was built into it.

use rdkafka::ClientConfig;
use rdkafka::util::get_rdkafka_version;

/// librdkafka's version, such as `2.12.1`.
pub(crate) fn version() -> String {
    get_rdkafka_version().1
}

/// What librdkafka was built with, by its own names, such as `ssl`, `sasl_scram` or `zstd`; none if it does not say.
pub(crate) fn features() -> Vec<String> {
    let asked = ClientConfig::new().create_native_config().and_then(|config| config.get("builtin.features"));
    asked.unwrap_or_default().split(',').map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::features;

    #[test]
    fn what_the_configuration_offers_is_built_in() {
        let features = features();
        for needed in ["ssl", "sasl_plain", "sasl_scram", "sasl_oauthbearer", "gzip", "snappy", "lz4", "zstd"]
        {
            assert!(features.iter().any(|feature| feature == needed), "{needed}: {features:?}");
        }
    }
}
