//! Sizes in bytes.

use crate::config::{ByteSize, InvalidSize};

#[test]
fn sizes_are_parsed_with_and_without_units() {
    for (text, bytes) in
        [("8MiB", 8 << 20), ("512KiB", 512 << 10), ("1 GiB", 1 << 30), ("65536", 65536), ("2mb", 2_000_000)]
    {
        assert_eq!(text.parse(), Ok(ByteSize::bytes(bytes)), "{text}");
    }
}

#[test]
fn invalid_sizes_are_rejected() {
    for text in ["", "MiB", "-1", "1.5MiB", "8 MiBs", "99999999999999999999", "18446744073709551615KiB"] {
        assert_eq!(text.parse::<ByteSize>(), Err(InvalidSize), "{text}");
    }
}

#[test]
fn printed_sizes_round_trip() {
    for (bytes, shown) in [(8 << 20, "8MiB"), (1000, "1000B"), (0, "0B"), (3 << 10, "3KiB")] {
        assert_eq!(ByteSize::bytes(bytes).to_string(), shown);
        assert_eq!(shown.parse(), Ok(ByteSize::bytes(bytes)));
    }
}
