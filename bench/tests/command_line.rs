//! The command line of `outbox-bench`: its version, its completions, how it finds the relay, and its manual page, which
//! `make docs` writes.

#[path = "../../tests/integration/project/man_pages/commands.rs"]
#[allow(dead_code)] // the pages of the relay use the rest of it
mod commands;

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::support::command::{Ended, of_program};

const BENCH: &str = env!("CARGO_BIN_EXE_outbox-bench");
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../man/outbox-bench.1");
const MANUAL: &str = "outbox-relay";

/// The environment variables of a complete configuration, for servers that do not exist.
fn settings(more: &[(&str, &str)]) -> Vec<(String, String)> {
    let servers = [
        ("POSTGRES__URL", "postgres://nobody@127.0.0.1:1/none"),
        ("KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1"),
    ];
    let settings = servers.iter().chain(more);
    settings.map(|(name, value)| (format!("OUTBOX_RELAY__{name}"), (*value).to_owned())).collect()
}

fn bench(arguments: &[&str]) -> Ended {
    Ended::of(of_program(Path::new(BENCH)).args(arguments))
}

#[test]
fn version_names_program_and_librdkafka() {
    let version = concat!("outbox-bench ", env!("CARGO_PKG_VERSION"));
    assert_eq!(bench(&["-V"]).succeeds().trim_end(), version);
    let ended = bench(&["--version"]);
    assert!(ended.succeeds().starts_with(version) && ended.stdout.contains("librdkafka"), "{ended}");
}

#[test]
fn every_shell_has_a_completion_script_with_every_option() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let ended = bench(&["--completions", shell]);
        for option in ["only", "payload", "relay"] {
            assert!(ended.succeeds().contains(option), "{shell}: {option}");
        }
    }
    bench(&["--completions", "tcsh"]).fails(2, &["tcsh", "possible values"]);
}

/// The program is in a separate folder without a relay, and PATH contains nothing else.
#[test]
fn missing_relay_and_one_of_another_version_are_reported() {
    let folder = tempfile::tempdir_in(Path::new(BENCH).parent().unwrap()).unwrap();
    let alone = folder.path().join("outbox-bench");
    fs::hard_link(BENCH, &alone).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = of_program(&alone);
        Ended::of(command.args(arguments).envs(settings(&[])).env("PATH", folder.path()))
    };
    run(&[]).fails(78, &["Cannot find outbox-relay", "--relay PATH"]);
    run(&["--relay", "/nowhere"]).fails(78, &["--relay /nowhere is not a program"]);
    // Programs that print another version.
    run(&["--relay", "/bin/echo"]).fails(78, &["/bin/echo is \"-V\"", "from the same release"]);
    symlink("/bin/echo", folder.path().join("outbox-relay")).unwrap();
    run(&[]).fails(78, &["outbox-relay is \"-V\""]);
}

/// The Kafka client library cannot manage topics with a token, so the program refuses before it connects.
#[test]
fn login_with_a_token_is_refused() {
    let settings = settings(&[
        ("KAFKA__PROPERTIES__SECURITY_PROTOCOL", "sasl_ssl"),
        ("KAFKA__OAUTH__TOKEN_URL", "https://127.0.0.1:1/token"),
        ("KAFKA__OAUTH__CLIENT_ID", "relay"),
        ("KAFKA__OAUTH__CLIENT_SECRET", "secret"),
    ]);
    let relay = crate::support::command::relay_binary();
    let mut command = of_program(Path::new(BENCH));
    command.args(["--only", "drain", "--relay"]).arg(relay).envs(settings);
    Ended::of(&mut command).fails(78, &["cannot manage topics when it logs in with a token"]);
}

#[test]
fn man_page_matches_the_code() {
    let mut pages = commands::pages(outbox_bench::cli::command());
    let page = pages.remove("outbox-bench.1").unwrap();
    assert!(pages.is_empty(), "{pages:?}");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(FILE, &page).unwrap();
    }
    let written = fs::read_to_string(FILE).unwrap_or_default();
    assert!(written == page, "man/outbox-bench.1 is out of date; run `make docs`");
}

#[test]
fn groff_accepts_the_man_page() {
    let output = match Command::new("groff").args(["-man", "-ww", "-z", "-Tutf8", FILE]).output() {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("SKIPPED: groff is not installed");
            return;
        }
        Err(error) => panic!("groff: {error}"),
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}
