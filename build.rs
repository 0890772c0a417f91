//! Provides the build information for `--version`: commit, compiler and target. A tree without git has no commit.

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
    // A debug build does not contain the commit, because it would have to be rebuilt after each commit.
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

/// The commit of this checkout. None without git, or if the tree is inside another repository.
pub fn commit(root: &Path) -> Option<String> {
    if !root.join(".git").exists() {
        return None;
    }
    let git = |arguments: &[&str]| output(Command::new("git").arg("-C").arg(root).args(arguments));
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    // HEAD changes at a checkout, and its log with each commit.
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", name]) {
            println!("cargo::rerun-if-changed={}", root.join(path).display());
        }
    }
    Some(commit)
}

/// The output of a program, if it exists and succeeds.
fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned()).filter(|text| !text.is_empty())
}
