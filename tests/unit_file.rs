//! The systemd unit, judged by systemd's own checker. Where systemd is not installed there is nothing to judge it with,
//! and the tests say so.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Output};

const UNIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/systemd/outbox-relay.service");

/// Runs systemd-analyze on the unit, with the binary where it really is.
fn analyze(arguments: &[&str]) -> Option<Output> {
    let folder = tempfile::tempdir().unwrap();
    let unit = folder.path().join(Path::new(UNIT).file_name().unwrap());
    let text = fs::read_to_string(UNIT).unwrap();
    fs::write(&unit, text.replace("/usr/bin/outbox-relay", env!("CARGO_BIN_EXE_outbox-relay"))).unwrap();
    match Command::new("systemd-analyze").args(arguments).arg(&unit).output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("not run: systemd-analyze is not installed");
            None
        }
        Err(error) => panic!("systemd-analyze: {error}"),
    }
}

#[test]
fn the_unit_is_one_that_systemd_has_nothing_to_say_about() {
    let Some(output) = analyze(&["verify"]) else { return };
    let said =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    let about_it: Vec<_> = said.lines().filter(|line| line.contains("outbox-relay")).collect();
    assert!(output.status.success() && about_it.is_empty(), "{said}");
}

#[test]
fn the_sandbox_of_the_unit_leaves_little_exposed() {
    let Some(output) = analyze(&["security", "--offline=true", "--threshold=15"]) else { return };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
