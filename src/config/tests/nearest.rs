//! "Did you mean".

use crate::config::nearest::nearest;

#[test]
fn a_mistyped_name_finds_its_neighbour_and_a_strange_one_finds_none() {
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
