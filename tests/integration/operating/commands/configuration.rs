//! Invalid configurations: exit code 78, with all errors at once.

use super::{Ended, binary};

const COMMANDS: [&[&str]; 8] = [
    &["run"],
    &["check-config"],
    &["status"],
    &["doctor"],
    &["reap"],
    &["verify"],
    &["replay", "--all"],
    &["migrate", "--print"],
];

const GOOD: &str =
    "[postgres]\nurl = \"postgres://relay@localhost/app\"\n[kafka]\nbootstrap_servers = \"localhost:9\"\n";

fn with_config(args: &[&str], text: &str) -> Ended {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("relay.toml");
    std::fs::write(&path, text).unwrap();
    Ended::of(binary(args).arg("--config").arg(path))
}

/// The option wins over the environment variable, wherever it is.
#[test]
fn file_is_named_before_or_after_the_subcommand_or_by_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("relay.toml");
    std::fs::write(&path, GOOD).unwrap();
    let file = path.to_str().unwrap();
    let says = format!("configuration  {file} is valid");
    for args in [["--config", file, "check-config"], ["check-config", "-c", file]] {
        assert!(Ended::of(&mut binary(&args)).succeeds().contains(&says));
        let ended = Ended::of(binary(&args).env("OUTBOX_RELAY_CONFIG", "/nowhere/relay.toml"));
        assert!(ended.succeeds().contains(&says), "{ended}");
    }
    let named = Ended::of(binary(&["check-config"]).env("OUTBOX_RELAY_CONFIG", file));
    assert!(named.succeeds().contains(&says), "{named}");
    // The value of the variable is not in the help, because it depends on the host.
    let help = Ended::of(binary(&["check-config", "--help"]).env("OUTBOX_RELAY_CONFIG", file));
    assert!(!help.succeeds().contains(file) && help.stdout.contains("OUTBOX_RELAY_CONFIG"), "{help}");
    // Without a name, only the environment is used, even if there is a file in /etc.
    let none = Ended::of(binary(&["check-config"]).env("OUTBOX_RELAY_CONFIG", ""));
    none.fails(78, &["[postgres] url or url_file is missing"]);
    let help = Ended::of(&mut binary(&["--help"]));
    assert!(help.succeeds().starts_with("Publish PostgreSQL outbox events to Apache Kafka\n"), "{help}");
    let list = Ended::of(&mut binary(&["--config", "/nowhere/relay.toml", "dead-letters", "list"]));
    list.fails(78, &["/nowhere/relay.toml"]);
}

#[test]
fn missing_file_ends_every_command_with_78() {
    for args in COMMANDS {
        let ended = Ended::of(binary(args).args(["--config", "/nowhere/relay.toml"]));
        ended.fails(78, &["/nowhere/relay.toml", "The configuration is invalid."]);
    }
}

#[test]
fn malformed_file_ends_every_command_with_78_and_names_the_line() {
    for args in COMMANDS {
        with_config(args, "[postgres]\nurl = \n").fails(78, &["relay.toml:2", "2 | url ="]);
    }
}

#[test]
fn all_errors_are_reported_at_once() {
    let text = format!(
        "{GOOD}[kafka.properties]\n\"acks\" = \"1\"\n\"linger.mss\" = 5\n[relay]\nbatch_size = 0\nworker = \
         2\npoll_interval = \"-1s\"\n[reaper]\nretention = 7\n"
    );
    with_config(&["check-config"], &text).fails(
        78,
        &[
            "acks",
            "cannot be set: an event counts as sent only when all in-sync replicas have it",
            "linger.mss",
            "batch_size = 0",
            "`worker`",
            "`workers`",
            "poll_interval",
            "retention",
        ],
    );
}

#[test]
fn errors_that_only_the_client_detects_are_reported() {
    let text =
        format!("{GOOD}[kafka.properties]\n\"security.protocol\" = \"ssl\"\n\"ssl.key.pem\" = \"hunter2\"\n");
    for args in [&["check-config"][..], &["run"]] {
        let ended = with_config(args, &text);
        ended.fails(78, &["[kafka.properties] is invalid"]);
        assert!(!ended.stderr.contains("hunter2"), "{ended}");
    }
}

#[test]
fn aws_section_needs_a_program_that_was_built_with_it() {
    let text = format!(
        "{GOOD}[kafka.properties]\n\"security.protocol\" = \"sasl_ssl\"\n[kafka.aws]\nregion = \"eu-central-1\"\n"
    );
    if cfg!(feature = "aws") {
        with_config(&["check-config"], &text).succeeds();
        return;
    }
    for args in [&["check-config"][..], &["run"]] {
        let ended = with_config(args, &text);
        ended.fails(
            78,
            &["relay.toml:8: [kafka.aws] is set, but this program was built without the aws feature"],
        );
        assert_eq!(ended.stderr.matches("relay.toml:").count(), 1, "{ended}");
        assert!(ended.stderr.contains("help: use the binary from a release package"), "{ended}");
    }
}

#[test]
fn certificate_file_without_a_certificate_is_reported() {
    let text = GOOD.replace("[kafka]", "sslrootcert = \"relay.toml\"\n[kafka]");
    with_config(&["check-config"], &text).fails(78, &["the root certificate", "contains no PEM certificate"]);
}

#[test]
fn valid_file_is_accepted_without_a_server() {
    let ended = with_config(&["check-config"], GOOD);
    let file = ended.succeeds().strip_prefix("configuration  /");
    assert!(file.is_some_and(|rest| rest.ends_with("/relay.toml is valid\n")), "{ended}");
    assert_eq!(ended.stderr, "");
}

#[test]
fn full_stdout_is_an_error_without_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("relay.toml");
    std::fs::write(&path, GOOD).unwrap();
    for (args, code) in
        [(&["check-config"][..], 0), (&["migrate", "--print"], 1), (&["migrate", "--print-roles"], 1)]
    {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let ended = Ended::of(binary(args).arg("--config").arg(&path).stdout(full));
        ended.fails(code, &["writing to stdout: No space left on device"]);
    }
}

#[test]
fn full_stderr_does_not_change_how_a_command_ends() {
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    let missing = binary(&["check-config", "--config", "/missing"]).stderr(full()).output().unwrap();
    assert_eq!(missing.status.code(), Some(78), "{:?}", missing.status);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("relay.toml");
    std::fs::write(&path, GOOD).unwrap();
    let file = ("OUTBOX_RELAY_CONFIG", &path);
    let printed = binary(&["migrate", "--print"]).env(file.0, file.1).stderr(full()).output().unwrap();
    assert!(printed.status.success() && !printed.stdout.is_empty(), "{:?}", printed.status);
}

#[test]
fn invalid_values_of_options_are_explained() {
    for (args, said) in [
        (&["dead-letters", "show", "x"][..], "an ID is a whole number"),
        (&["dead-letters", "list", "--limit", "0"], "write a number from 1 to"),
        (&["dead-letters", "list", "--older-than", "yesterday"], "write a number and a unit, such as 1h"),
        (&["dead-letters", "list", "--event-id", "1"], "an event ID is a UUID"),
        (&["status", "--watch", "fast"], "write a number and a unit, such as 2s"),
    ] {
        Ended::of(&mut binary(args)).fails(2, &[said]);
    }
}

#[test]
fn wrong_command_line_ends_with_2() {
    Ended::of(&mut binary(&["rum"])).fails(2, &["rum"]);
    Ended::of(&mut binary(&["migrate", "--print", "--dry-run"])).fails(2, &["cannot be used with"]);
}

#[test]
fn help_of_every_command_has_exit_codes_and_examples() {
    let commands = "run, init, check-config, status, doctor, reap, migrate, dead-letters, dead-letters list, dead-letters show, \
                    dead-letters requeue, dead-letters discard, dead-letters history, blocked-keys, blocked-keys list, \
                    blocked-keys retry, blocked-keys dead-letter";
    for command in commands.split(", ") {
        let help = Ended::of(binary(&command.split(' ').collect::<Vec<_>>()).arg("--help"));
        assert!(help.succeeds().contains("Exit codes: 0") && help.stdout.contains("Examples:"), "{help}");
    }
}
