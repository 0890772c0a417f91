//! `[postgres] password_command`: a command that prints the password, for tokens that expire.

use crate::options::PasswordCommand;
use futures_util::future::{Either, select};
use rustix::process::{Pid, Signal, kill_process_group};
use settings::secret::Secret;
use settings::setting::VARIABLE_PREFIX;
use settings::text::in_line;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, copy, sink};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

pub const WITHIN: Duration = Duration::from_secs(10);
/// A password is far shorter.
const BYTES_MAX: u64 = 64 << 10;
/// The beginning of stderr that an error may quote.
const STDERR_BYTES: u64 = 4 << 10;
const STDERR_CHARS: usize = 300;
/// How long to wait for the end of stderr after the end of the command, which may have left other processes behind.
const STDERR_WITHIN: Duration = Duration::from_millis(200);

/// Runs the command. Returns its output without trailing line breaks. If the future is dropped, the command and its
/// children are killed. The error contains the reason and a remedy. It may quote the beginning of stderr, but no output that
/// may be the password.
pub(super) async fn run(command: &PasswordCommand) -> Result<Secret, String> {
    run_within(WITHIN, command).await
}

async fn run_within(within: Duration, command: &PasswordCommand) -> Result<Secret, String> {
    let ended = timeout(within, output(command)).await;
    ended.unwrap_or_else(|_| Err(format!("did not end within {within:?}"))).map_err(|reason| {
        format!("[postgres] password_command {reason}. Fix: run the command as the user that runs the relay")
    })
}

async fn output(command: &PasswordCommand) -> Result<Secret, String> {
    let mut process = Command::new(command.program());
    process.args(command.arguments()).process_group(0);
    // The command needs no other secrets, and prints what it has when it fails.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with(VARIABLE_PREFIX) || name == "CREDENTIALS_DIRECTORY" {
            process.env_remove(name);
        }
    }
    process.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut group = Group(process.spawn().map_err(|error| format!("cannot be started: {error}"))?);
    let (Some(stdout), Some(stderr)) = (group.0.stdout.take(), group.0.stderr.take()) else {
        unreachable!("both are pipes")
    };
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    let ended = draining(end(&mut group, stdout, &mut output), stderr, &mut errors).await;
    password(ended, &output).map_err(|reason| match quoted(&errors, &output) {
        Some(quoted) => format!("{reason}: {quoted}"),
        None => reason,
    })
}

async fn end(group: &mut Group, stdout: ChildStdout, output: &mut Vec<u8>) -> Result<ExitStatus, String> {
    let read = stdout.take(BYTES_MAX + 1).read_to_end(output).await;
    read.map_err(|error| format!("could not be read: {error}"))?;
    if output.len() as u64 > BYTES_MAX {
        return Err("printed more than 64 KiB".to_owned());
    }
    group.0.wait().await.map_err(|error| format!("has no exit status: {error}"))
}

fn password(ended: Result<ExitStatus, String>, output: &[u8]) -> Result<Secret, String> {
    let status = ended?;
    if !status.success() {
        return Err(format!("failed ({status})"));
    }
    let password = std::str::from_utf8(output).map_err(|_| "printed text that is not UTF-8".to_owned())?;
    let password = password.trim_end_matches(['\r', '\n']);
    if password.is_empty() || password.contains('\0') {
        return Err("did not print a password".to_owned());
    }
    Ok(Secret::new(password))
}

/// Polls `work` to its end. Meanwhile reads all of stderr, so that the command never waits, and keeps its beginning.
async fn draining<T>(
    work: impl Future<Output = T>,
    mut stderr: impl AsyncRead + Unpin,
    kept: &mut Vec<u8>,
) -> T {
    let drain = pin!(async {
        // An error means that there is nothing more to read.
        _ = (&mut stderr).take(STDERR_BYTES).read_to_end(kept).await;
        _ = copy(&mut stderr, &mut sink()).await;
    });
    match select(pin!(work), drain).await {
        Either::Left((done, drain)) => {
            _ = timeout(STDERR_WITHIN, drain).await;
            done
        }
        Either::Right(((), work)) => work.await,
    }
}

/// The beginning of stderr on one line, without what the command printed on stdout.
fn quoted(errors: &[u8], output: &[u8]) -> Option<String> {
    let mut text = String::from_utf8_lossy(errors).into_owned();
    for line in String::from_utf8_lossy(output).lines().map(str::trim).filter(|line| !line.is_empty()) {
        text = text.replace(line, "…");
    }
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    (!text.is_empty()).then(|| in_line(&text, STDERR_CHARS))
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

    fn command(words: &[&str]) -> PasswordCommand {
        PasswordCommand::new(words.iter().map(|&word| word.to_owned()).collect()).unwrap()
    }

    fn shell(line: &str) -> PasswordCommand {
        command(&["/bin/sh", "-c", line])
    }

    #[tokio::test]
    async fn the_output_is_the_password_without_line_breaks() {
        assert_eq!(run(&shell("printf 'a b\\r\\n\\n'")).await.unwrap().expose(), "a b");
        assert_eq!(run(&shell("echo one; echo two")).await.unwrap().expose(), "one\ntwo");
    }

    #[tokio::test]
    async fn no_shell_interprets_the_arguments() {
        let printed = run(&command(&["printf", "%s", "$HOME `id` 'x' | cat"])).await.unwrap();
        assert_eq!(printed.expose(), "$HOME `id` 'x' | cat");
    }

    #[tokio::test]
    async fn the_command_does_not_inherit_the_secrets_of_the_relay() {
        let names = run(&shell("env | cut -d= -f1")).await.unwrap();
        let is_ours = |name: &&str| name.starts_with(VARIABLE_PREFIX) || *name == "CREDENTIALS_DIRECTORY";
        assert_eq!(names.expose().lines().find(is_ours), None);
        assert!(names.expose().lines().any(|name| name == "PATH"));
    }

    #[tokio::test]
    async fn a_failure_names_the_reason_without_the_output() {
        const SECRET: &str = "hunter2";
        for (line, reason) in [
            ("exit 3", "password_command failed (exit status: 3). Fix: "),
            ("echo hunter2; echo no access >&2; exit 1", "failed (exit status: 1): no access. Fix: "),
            ("echo hunter2; echo for hunter2 >&2; exit 1", "failed (exit status: 1): for …. Fix: "),
            ("printf 'a\\nb\\033[1m' >&2; exit 1", "failed (exit status: 1): a b\\u{1b}[1m. Fix: "),
            ("kill -9 $$", "signal: 9"),
            ("true", "did not print a password"),
            ("echo expired >&2", "did not print a password: expired. Fix: "),
            ("echo", "did not print a password"),
            ("printf 'hunter2\\000x'", "did not print a password"),
            ("printf '\\377'", "not UTF-8"),
            ("head -c 100000 /dev/zero", "printed more than 64 KiB"),
            ("yes", "printed more than 64 KiB"),
        ] {
            let error = run(&shell(line)).await.unwrap_err();
            assert!(error.contains(reason) && error.contains(". Fix: "), "{line}: {error}");
            assert!(!error.contains(SECRET), "{error}");
        }
        let error = run(&command(&["/no/such/program"])).await.unwrap_err();
        assert!(error.contains("cannot be started: No such file or directory"), "{error}");
    }

    #[tokio::test]
    async fn stderr_is_cut_and_never_stops_the_command() {
        let error = run(&shell("head -c 1000000 /dev/zero | tr '\\0' x >&2; exit 1")).await.unwrap_err();
        assert!(error.len() < 500 && error.contains("): xxx") && error.contains("x…. Fix: "), "{error}");
        // A process that stays behind keeps stderr open.
        assert_eq!(run(&shell("sleep 3 >/dev/null & echo secret")).await.unwrap().expose(), "secret");
    }

    #[tokio::test]
    async fn a_command_that_takes_too_long_is_killed_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pids");
        let line = format!("sleep 1000 & echo $! $$ > {}; wait", path.display());
        let error = run_within(Duration::from_millis(500), &shell(&line)).await.unwrap_err();
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
