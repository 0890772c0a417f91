//! `[postgres] password_command`: a command that prints the password, for tokens that expire.

use crate::config::Secret;
use rustix::process::{Pid, Signal, kill_process_group};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// How long the command may take.
pub(crate) const WITHIN: Duration = Duration::from_secs(10);
/// A password is far shorter.
const BYTES_MAX: u64 = 64 << 10;

/// Runs the command with `/bin/sh`. Returns its output without trailing line breaks. If the future is dropped, the command
/// and its children are killed.
///
/// # Errors
///
/// The reason and a remedy, without any output of the command.
pub(super) async fn run(command: &Secret) -> Result<Secret, String> {
    run_within(WITHIN, command.expose()).await
}

async fn run_within(within: Duration, command: &str) -> Result<Secret, String> {
    let ended = timeout(within, output(command)).await;
    ended.unwrap_or_else(|_| Err(format!("did not end within {within:?}"))).map_err(|reason| {
        format!("[postgres] password_command {reason}. Fix: run the command as the user that runs the relay")
    })
}

async fn output(command: &str) -> Result<Secret, String> {
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(command).process_group(0);
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut group = Group(shell.spawn().map_err(|error| format!("cannot be started: {error}"))?);
    let mut output = Vec::new();
    if let Some(stdout) = group.0.stdout.take() {
        let read = stdout.take(BYTES_MAX + 1).read_to_end(&mut output).await;
        read.map_err(|error| format!("could not be read: {error}"))?;
    }
    if output.len() as u64 > BYTES_MAX {
        return Err("printed more than 64 KiB".to_owned());
    }
    let status = group.0.wait().await.map_err(|error| format!("has no exit status: {error}"))?;
    if !status.success() {
        return Err(format!("failed ({status})"));
    }
    let password = String::from_utf8(output).map_err(|_| "printed text that is not UTF-8".to_owned())?;
    let password = password.trim_end_matches(['\r', '\n']);
    if password.is_empty() || password.contains('\0') {
        return Err("did not print a password".to_owned());
    }
    Ok(Secret::new(password))
}

/// The command and its children. Dropping it kills them, unless the command has ended.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        let group = self.0.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        if let Some(group) = group {
            _ = kill_process_group(group, Signal::KILL); // it may have ended meanwhile
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn refused(command: &str) -> String {
        run(&Secret::new(command)).await.unwrap_err()
    }

    #[tokio::test]
    async fn the_output_is_the_password_without_line_breaks() {
        assert_eq!(run(&Secret::new("printf 'a b\\r\\n\\n'")).await.unwrap().expose(), "a b");
        assert_eq!(run(&Secret::new("echo one; echo two")).await.unwrap().expose(), "one\ntwo");
    }

    #[tokio::test]
    async fn a_failure_names_the_reason_without_the_output() {
        const SECRET: &str = "hunter2";
        for (command, reason) in [
            ("exit 3", "password_command failed (exit status: 3)"),
            ("echo hunter2; echo hunter2 >&2; exit 1", "password_command failed (exit status: 1)"),
            ("kill -9 $$", "signal: 9"),
            ("true", "did not print a password"),
            ("echo", "did not print a password"),
            ("printf 'hunter2\\000x'", "did not print a password"),
            ("printf '\\377'", "not UTF-8"),
            ("no-such-command-hunter2", "failed (exit status: 127)"),
            ("head -c 100000 /dev/zero", "printed more than 64 KiB"),
            ("yes", "printed more than 64 KiB"),
        ] {
            let error = refused(command).await;
            assert!(error.contains(reason) && error.contains(". Fix: "), "{command}: {error}");
            assert!(!error.contains(SECRET), "{error}");
        }
    }

    #[tokio::test]
    async fn a_command_that_takes_too_long_is_killed_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pids");
        let command = format!("sleep 1000 & echo $! $$ > {}; wait", path.display());
        let error = run_within(Duration::from_millis(500), &command).await.unwrap_err();
        assert!(error.contains("did not end within 500ms"), "{error}");
        let pids = std::fs::read_to_string(&path).unwrap();
        assert_eq!(pids.split_whitespace().count(), 2, "{pids}");
        for pid in pids.split_whitespace() {
            let stat = format!("/proc/{pid}/stat");
            while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }
}
