//! `scripts/third-party` lists everything that is linked into the programs: the SBOM and the notices in the packages.

use serde_json::Value;
use std::path::Path;
use std::process::Command;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn third_party(arguments: &[&str]) -> String {
    let script = Path::new(ROOT).join("scripts/third-party");
    let output =
        Command::new(script).args(arguments).env("SOURCE_DATE_EPOCH", "1700000000").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The script compares the program with the list, so a list that does not fit fails.
#[test]
fn sbom_names_the_libraries_that_the_program_contains() {
    let text = third_party(&["sbom", "--any-build", env!("CARGO_BIN_EXE_outbox-relay")]);
    let sbom: Value = serde_json::from_str(&text).unwrap();
    let components = sbom["components"].as_array().unwrap();
    let find = |name: &str| components.iter().find(|component| component["name"] == name);
    let output = Command::new(env!("CARGO_BIN_EXE_outbox-relay")).arg("--version").output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let version = output.lines().find_map(|line| line.strip_prefix("librdkafka")).unwrap().trim();
    assert_eq!(find("librdkafka").unwrap()["version"], version);
    assert_eq!(sbom["metadata"]["component"]["version"], env!("CARGO_PKG_VERSION"));
    for part in ["lz4", "snappy", "zstd", "crc32c", "cjson", "nanopb", "tinycthread", "regexp", "murmur2"] {
        assert!(find(part).is_some(), "{part}");
    }
    for crate_name in ["rdkafka-sys", "tokio-postgres", "openssl", "aws-config"] {
        assert!(find(crate_name).is_some(), "{crate_name}");
    }
    for system in ["libssl.so.3", "libz.so.1"] {
        assert!(find(system).is_some(), "{system}");
    }
    // Drivers under test and tools of the build are not linked.
    for absent in ["sqlx", "diesel", "sea-orm", "clap_mangen", "serde_derive", "outbox-bench"] {
        assert!(find(absent).is_none(), "{absent}");
    }
}

/// The script fails if a crate has no license text.
#[test]
fn notices_contain_the_licenses_of_crates_and_c_libraries() {
    let notices = third_party(&["notices"]);
    for expected in [
        "Copyright (c) 2012-2022, Magnus Edenhill",
        "\nlz4, in librdkafka ",
        "\nsnappy, in librdkafka ",
        "\nzstd ",
        "\ntokio 1.",
        "\nrdkafka 0.",
    ] {
        assert!(notices.contains(expected), "{expected}");
    }
    for ours in ["\npg-outbox ", "\npg-outbox-relay "] {
        assert!(!notices.contains(ours), "{ours}");
    }
}
