//! Sizes in bytes.

use crate::config::{BadSize, ByteSize};

#[test]
fn sizes_are_read_as_people_write_them() {
    for (text, bytes) in
        [("8MiB", 8 << 20), ("512KiB", 512 << 10), ("1 GiB", 1 << 30), ("65536", 65536), ("2mb", 2_000_000)]
    {
        assert_eq!(text.parse(), Ok(ByteSize::bytes(bytes)), "{text}");
    }
}

#[test]
fn what_is_no_size_is_refused() {
    for text in ["", "MiB", "-1", "1.5MiB", "8 MiBs", "99999999999999999999", "18446744073709551615KiB"] {
        assert_eq!(text.parse::<ByteSize>(), Err(BadSize), "{text}");
    }
}

#[test]
fn a_shown_size_reads_back_as_itself() {
    for (bytes, shown) in [(8 << 20, "8MiB"), (1000, "1000B"), (0, "0B"), (3 << 10, "3KiB")] {
        assert_eq!(ByteSize::bytes(bytes).to_string(), shown);
        assert_eq!(shown.parse(), Ok(ByteSize::bytes(bytes)));
    }
}
