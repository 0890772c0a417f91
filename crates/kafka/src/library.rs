//! The Kafka client in this binary: its version and its features.

use rdkafka::ClientConfig;
use rdkafka::util::get_rdkafka_version;

/// Keeps OpenSSL usable until the process has ended. Otherwise an exit handler frees its state while threads of a client that
/// is being destroyed may still use it, and the process can crash instead of returning its exit code. Call it before anything
/// uses OpenSSL: only the first initialization can leave out the handler (`OPENSSL_INIT_NO_ATEXIT` in OPENSSL_init_crypto(3)),
/// and librdkafka leaves the initialization to OpenSSL.
pub fn keep_openssl() {
    openssl::init();
}

/// librdkafka's version, such as `2.12.1`.
pub fn version() -> String {
    get_rdkafka_version().1
}

/// librdkafka's built-in features, such as `ssl`, `sasl_scram` or `zstd`.
pub fn features() -> Vec<String> {
    let names = ClientConfig::new().create_native_config().and_then(|config| config.get("builtin.features"));
    names.unwrap_or_default().split(',').map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::features;

    #[test]
    fn the_features_that_the_configuration_offers_are_built_in() {
        let features = features();
        for needed in ["ssl", "sasl_plain", "sasl_scram", "sasl_oauthbearer", "gzip", "snappy", "lz4", "zstd"]
        {
            assert!(features.iter().any(|feature| feature == needed), "{needed}: {features:?}");
        }
    }
}
