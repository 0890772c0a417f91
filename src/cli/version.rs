//! The output of `--version`, for bug reports.

use kafka::client;
use std::sync::LazyLock;

const COMPRESSIONS: [&str; 4] = ["gzip", "snappy", "lz4", "zstd"];

/// The version, then one line each about the build and the libraries.
pub fn long() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(text);
    &TEXT
}

fn text() -> String {
    let features = client::features();
    let compressions = features.iter().filter(|feature| COMPRESSIONS.contains(&feature.as_str()));
    let mut lines = vec![
        env!("CARGO_PKG_VERSION").to_owned(),
        line("commit", option_env!("OUTBOX_RELAY_BUILT_FROM").unwrap_or("unknown")),
        line(
            "built",
            &format!("by {} for {}", env!("OUTBOX_RELAY_BUILT_BY"), env!("OUTBOX_RELAY_BUILT_FOR")),
        ),
        line("librdkafka", &client::version()),
        line(
            "TLS",
            if features.iter().any(|feature| feature == "ssl") {
                openssl::version::version()
            } else {
                "none"
            },
        ),
        line("SASL", &list(features.iter().filter_map(|feature| mechanism(feature)))),
        line("AWS IAM", if cfg!(feature = "aws") { "built in" } else { "not built in" }),
        line("compression", &list(compressions.cloned())),
    ];
    if cfg!(feature = "fail-points") {
        lines.push(line("for tests", "fail points"));
    }
    lines.join("\n")
}

fn line(name: &str, text: &str) -> String {
    format!("{name:<12}{text}")
}

fn list(words: impl Iterator<Item = String>) -> String {
    let words: Vec<_> = words.collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

/// The SASL mechanisms of a feature, as values of `sasl.mechanism`.
fn mechanism(feature: &str) -> Option<String> {
    match feature.strip_prefix("sasl_")? {
        "scram" => Some("SCRAM-SHA-256, SCRAM-SHA-512".to_owned()),
        other => Some(other.to_uppercase()),
    }
}
