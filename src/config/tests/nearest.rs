//! Suggestions for mistyped names.

use settings::file::nearest;

#[test]
fn mistyped_names_have_a_suggestion_and_other_names_have_none() {
    let names = ["batch_size", "batch_bytes", "workers"];
    for (text, expected) in [
        ("batch_sise", Some("batch_size")),
        ("batchsize", Some("batch_size")),
        ("worker", Some("workers")),
        ("BATCH_BYTE", Some("batch_bytes")),
        ("colour", None),
    ] {
        assert_eq!(nearest(text, names), expected, "{text}");
    }
}
