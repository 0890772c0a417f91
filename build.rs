//! Tells `--version` what the binary is built from, by and for. A tree without git builds as well, and says so.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=OUTBOX_RELAY_COMMIT");
    let variable = |name: &str| env::var(name).unwrap_or_default();
    println!("cargo::rustc-env=OUTBOX_RELAY_BUILT_FOR={}", variable("TARGET"));
    println!("cargo::rustc-env=OUTBOX_RELAY_BUILT_BY={}", compiler(&variable("RUSTC")));
    let root = variable("CARGO_MANIFEST_DIR");
    // A build for development does not name the commit: it would be built anew after each one.
    let commit = match env::var("OUTBOX_RELAY_COMMIT") {
        Ok(named) => Some(named),
        Err(_) if variable("PROFILE") == "release" => commit(Path::new(&root)),
        Err(_) => None,
    };
    if let Some(commit) = commit {
        println!("cargo::rustc-env=OUTBOX_RELAY_BUILT_FROM={commit}");
    }
}

/// `rustc 1.95.0`, without its date and commit.
fn compiler(rustc: &str) -> String {
    let said = output(Command::new(rustc).arg("--version")).unwrap_or_default();
    let words: Vec<_> = said.split_whitespace().take(2).collect();
    if words.is_empty() { "an unknown compiler".to_owned() } else { words.join(" ") }
}

/// The commit of this checkout; none without git, or when the tree only lies inside of somebody else's repository.
pub fn commit(root: &Path) -> Option<String> {
    if !root.join(".git").exists() {
        return None;
    }
    let git = |arguments: &[&str]| output(Command::new("git").arg("-C").arg(root).args(arguments));
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    // HEAD changes when a branch is checked out, its log with each commit.
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", name]) {
            println!("cargo::rerun-if-changed={}", root.join(path).display());
        }
    }
    Some(commit)
}

/// What a program printed, if it is there and succeeded.
fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned()).filter(|text| !text.is_empty())
}
