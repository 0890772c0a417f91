//! The systemd units, checked by systemd-analyze. Where systemd is not installed, the tests print a line and are skipped.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::command::{Ended, binary};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/systemd");
const UNIT: &str = "outbox-relay.service";
const TEMPLATE: &str = "outbox-relay@.service";

fn text(unit: &str) -> String {
    fs::read_to_string(Path::new(FOLDER).join(unit)).unwrap()
}

/// Runs systemd-analyze on a unit, with the actual path of the binary.
fn analyze(arguments: &[&str], unit: &str) -> Option<Output> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(unit);
    let binary = env!("CARGO_BIN_EXE_outbox-relay");
    fs::write(&path, text(unit).replace("/usr/bin/outbox-relay", binary)).unwrap();
    match Command::new("systemd-analyze").args(arguments).arg(&path).output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("SKIPPED: systemd-analyze is not installed");
            None
        }
        Err(error) => panic!("systemd-analyze: {error}"),
    }
}

#[test]
fn systemd_reports_no_problems_in_the_units() {
    for unit in [UNIT, TEMPLATE] {
        let Some(output) = analyze(&["verify"], unit) else { return };
        let said =
            String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        let about_it: Vec<_> = said.lines().filter(|line| line.contains("outbox-relay")).collect();
        assert!(output.status.success() && about_it.is_empty(), "{unit}: {said}");
    }
}

#[test]
fn sandbox_of_the_units_leaves_little_exposed() {
    for unit in [UNIT, TEMPLATE] {
        // systemd uses a scale of 100 here: at most 1.5 of 10.
        let Some(output) = analyze(&["security", "--offline=true", "--threshold=15"], unit) else { return };
        assert!(output.status.success(), "{unit}: {}", String::from_utf8_lossy(&output.stdout));
    }
}

/// `systemctl reload` checks the configuration as root, which must not run the programs that the configuration names.
#[test]
fn reload_runs_no_command_of_the_configuration_as_root() {
    let reloads: Vec<String> =
        text(UNIT).lines().filter(|line| line.starts_with("ExecReload=")).map(str::to_owned).collect();
    let check = "ExecReload=+/usr/bin/env CREDENTIALS_DIRECTORY=/run/credentials/%n /usr/bin/outbox-relay \
                 check-config --config /etc/outbox-relay/config.toml";
    assert_eq!(reloads, [check, "ExecReload=/bin/kill -HUP $MAINPID"]);
    let folder = tempfile::tempdir().unwrap();
    let (config, ran) = (folder.path().join("config.toml"), folder.path().join("ran"));
    let text = format!(
        "[postgres]\nurl = \"postgres://u@localhost/a\"\npassword_command = [\"touch\", {ran:?}]\n[kafka]\nbootstrap_servers = \"localhost:1\"\n"
    );
    fs::write(&config, text).unwrap();
    Ended::of(binary(&["check-config", "--config"]).arg(&config)).succeeds();
    assert!(!ran.exists(), "check-config ran password_command");
}

/// The parts of the unit that differ in the template.
const OF_AN_INSTANCE: &[(&str, &str)] = &[
    ("systemd/outbox-relay.service", "systemd/outbox-relay@.service"),
    ("edit outbox-relay`", "edit outbox-relay@NAME`"),
    ("events from a PostgreSQL outbox table to Kafka", "events from a PostgreSQL outbox table to Kafka (%i)"),
    ("/etc/outbox-relay/config.toml", "/etc/outbox-relay/%i.toml"),
    ("In config.toml:", "In NAME.toml:"),
    ("next to config.toml", "next to NAME.toml"),
    ("Files that config.toml does", "Files that NAME.toml does"),
    ("postgres-url:/etc/outbox-relay/", "postgres-url:/etc/outbox-relay/%i."),
    ("postgres-password:/etc/outbox-relay/", "postgres-password:/etc/outbox-relay/%i."),
    ("kafka-password:/etc/outbox-relay/", "kafka-password:/etc/outbox-relay/%i."),
    ("User=outbox-relay", "User=outbox-relay-%i"),
];

const OF_THE_TEMPLATE: &str = "\
# Runs one relay for each of several outboxes. outbox-relay@NAME reads /etc/outbox-relay/NAME.toml and the secrets
# NAME.postgres-url, NAME.postgres-password and NAME.kafka-password in the same directory. Set a different [admin] listen
# for each instance. The default is 127.0.0.1:10187, and an instance does not start if its port is in use. NAME becomes
# part of a user name: at most 18 letters, digits, - and _. This file is written from outbox-relay.service: change that
# file, then run make docs
#
";

#[test]
fn template_matches_the_unit_except_for_instance_names() {
    let mut template = text(UNIT);
    for (plain, instance) in OF_AN_INSTANCE {
        assert!(template.contains(plain), "the unit no longer contains {plain:?}");
        template = template.replace(plain, instance);
    }
    template.insert_str(0, OF_THE_TEMPLATE);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(Path::new(FOLDER).join(TEMPLATE), &template).unwrap();
    }
    assert!(text(TEMPLATE) == template, "{TEMPLATE} is out of date; run `make docs`");
}
