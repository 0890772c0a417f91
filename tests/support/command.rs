//! The real binary as an operator runs it: arguments, output and exit code.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The relay binary that cargo built with these tests. Another crate of the workspace finds it in the same target
/// folder, after `cargo build` or the tests of the whole workspace.
pub fn relay_binary() -> PathBuf {
    if let Some(binary) = option_env!("CARGO_BIN_EXE_outbox-relay") {
        return binary.into();
    }
    let test = std::env::current_exe().unwrap();
    let binary = test.ancestors().nth(2).map(|folder| folder.join("outbox-relay")).unwrap();
    assert!(binary.exists(), "{} is missing: run `cargo build` first", binary.display());
    binary
}

/// Runs the binary, without environment variables that would affect it.
pub fn binary(args: &[&str]) -> Command {
    let mut command = of_program(&relay_binary());
    command.args(args);
    command
}

/// The same for another program.
pub fn of_program(program: &Path) -> Command {
    let mut command = Command::new(program);
    for name in ["NOTIFY_SOCKET", "JOURNAL_STREAM", "CREDENTIALS_DIRECTORY", "OUTBOX_RELAY_CONFIG"] {
        command.env_remove(name);
    }
    command
}

/// The result of a command.
#[derive(Debug)]
pub struct Ended {
    what: String,
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    pub fn of(command: &mut Command) -> Ended {
        let output = command.output().unwrap();
        Ended::new(format!("{command:?}"), output)
    }

    /// The result of this command.
    pub fn new(what: String, Output { status, stdout, stderr }: Output) -> Ended {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Ended { what, code: status.code().unwrap_or(-1), stdout: text(stdout), stderr: text(stderr) }
    }

    /// Asserts success and returns the output.
    #[track_caller]
    pub fn succeeds(&self) -> &str {
        assert_eq!(self.code, 0, "{self}");
        &self.stdout
    }

    /// Asserts that the command ended with this code and printed all of these texts.
    #[track_caller]
    pub fn fails(&self, code: i32, said: &[&str]) {
        assert_eq!(self.code, code, "{self}");
        for said in said {
            let found = self.stderr.contains(said) || self.stdout.contains(said);
            assert!(found, "{said:?} is missing in {self}");
        }
        assert!(!self.stderr.contains("panicked"), "{self}");
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Ended { what, code, stdout, stderr } = self;
        write!(f, "{what}\nexit code {code}\nstdout:\n{stdout}\nstderr:\n{stderr}")
    }
}
