//! The version information of the binary, `--version` and `-V`, and the completion scripts.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use crate::support::command::{Ended, binary};

/// The build script, because its result is part of every binary.
#[allow(dead_code, unreachable_pub)]
#[path = "../../../build.rs"]
mod build;

const VERSION: &str = concat!("outbox-relay ", env!("CARGO_PKG_VERSION"));

#[test]
fn short_version_is_one_line_and_the_long_one_lists_what_is_built_in() {
    assert_eq!(Ended::of(&mut binary(&["-V"])).succeeds().trim_end(), VERSION);
    let ended = Ended::of(&mut binary(&["--version"]));
    let mut lines = ended.succeeds().lines();
    assert_eq!(lines.next(), Some(VERSION));
    let said: Vec<(&str, &str)> = lines.map(|line| line.split_at(12)).collect();
    let says = |name: &str| said.iter().find(|(said, _)| said.trim_end() == name).map(|(_, says)| *says);
    for (name, holds) in [
        ("built", env!("CARGO_PKG_RUST_VERSION")),
        ("built", std::env::consts::ARCH),
        ("librdkafka", "2."),
        ("TLS", "OpenSSL "),
        ("SASL", "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"),
        ("AWS IAM", if cfg!(feature = "aws") { "built in" } else { "not built in" }),
        ("compression", "gzip, snappy, lz4, zstd"),
        ("commit", ""),
    ] {
        let says = says(name).unwrap_or_else(|| panic!("{name} is missing in {ended}"));
        assert!(says.contains(holds), "{name}: {says:?} does not contain {holds:?}");
    }
}

fn git(folder: &Path, arguments: &[&str]) -> String {
    let identity =
        ["-c", "user.name=Test", "-c", "user.email=test@localhost", "-c", "init.defaultBranch=main"];
    let output = Command::new("git").arg("-C").arg(folder).args(identity).args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn commit_is_that_of_the_checkout_and_not_of_a_repository_around_it() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(build::commit(folder.path()), None);
    git(folder.path(), &["init", "--quiet"]);
    assert_eq!(build::commit(folder.path()), None, "there is no commit");
    git(folder.path(), &["commit", "--quiet", "--allow-empty", "--message", "First"]);
    let commit = build::commit(folder.path()).unwrap();
    assert_eq!(commit.len(), 12);
    assert!(git(folder.path(), &["rev-parse", "HEAD"]).starts_with(&commit));

    let unpacked = folder.path().join("vendor/outbox-relay");
    fs::create_dir_all(&unpacked).unwrap();
    assert_eq!(build::commit(&unpacked), None);

    let worktree = folder.path().join("worktree");
    git(folder.path(), &["worktree", "add", "--quiet", worktree.to_str().unwrap()]);
    assert_eq!(build::commit(&worktree), Some(commit));
}

/// The words that bash offers after these words, using the script of the binary.
fn completed_by_bash(words: &[&str]) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    fs::write(&script, Ended::of(&mut binary(&["completions", "bash"])).succeeds()).unwrap();
    let ask = "source \"$1\"; shift; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
               registered=$(complete -p outbox-relay) || exit 1; function=${registered##*-F }; \
               ${function%% *} outbox-relay \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD-1]}\"; \
               echo \"${COMPREPLY[*]}\"";
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", ask, "bash"]).arg(&script).args(words);
    match bash.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("SKIPPED: bash is not installed");
            None
        }
        Err(error) => panic!("bash: {error}"),
        Ok(_) => Some(Ended::of(&mut bash).succeeds().trim_end().to_owned()),
    }
}

#[test]
fn bash_script_completes_commands_and_options() {
    for (words, offers) in [
        (&["outbox-relay", "dead-l"][..], "dead-letters"),
        (&["outbox-relay", "dead-letters", "req"], "requeue"),
        (&["outbox-relay", "run", "--onc"], "--once"),
    ] {
        let Some(offered) = completed_by_bash(words) else { return };
        assert_eq!(offered, offers, "{words:?}");
    }
}

#[test]
fn each_shell_has_a_script_with_every_command() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let ended = Ended::of(&mut binary(&["completions", shell]));
        for command in outbox_relay::cli::command().get_subcommands() {
            assert!(ended.succeeds().contains(command.get_name()), "{shell}: {}", command.get_name());
        }
    }
    Ended::of(&mut binary(&["completions", "tcsh"])).fails(2, &["tcsh", "possible values"]);
}
