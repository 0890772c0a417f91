//! A process of the run. It stays the same process after it is killed and started again.

use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::support::wait::wait_until;

/// A client that is stopped first waits for its answer.
const STOPS_WITHIN: Duration = Duration::from_secs(120);

/// What to start, and the running process, if any. It ends when it is dropped, and when the thread that started it
/// ends.
pub struct Process {
    pub name: String,
    program: PathBuf,
    arguments: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
}

impl Process {
    /// Does not start the process. Its output is appended to a file of its name in the folder.
    pub fn new(name: &str, program: &Path, arguments: &[&str], folder: &Path) -> Process {
        Process {
            name: name.to_owned(),
            program: program.to_owned(),
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            log: folder.join(format!("{name}.log")),
            child: None,
        }
    }

    /// Starts it without waiting, because servers that it needs may be unavailable.
    pub fn start(&mut self) {
        assert!(self.child.is_none(), "{} is running", self.name);
        let log = File::options().create(true).append(true).open(&self.log).unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(&self.program).args(&self.arguments);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.child = Some(command.spawn().unwrap());
    }

    /// Runs it to its end, which must be successful.
    pub async fn succeeds(mut self) {
        self.start();
        let status = self.ended().await;
        assert!(status.success(), "{}: {status}\n{}", self.name, self.said());
    }

    /// Sends SIGKILL and waits until it is dead. It may have ended already.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Sends SIGSTOP: it does nothing more, but its connections stay open.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Sends SIGCONT.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends SIGTERM. Returns whether it ended successfully.
    pub async fn stop(&mut self) -> bool {
        self.signal(Signal::TERM);
        self.ended().await.success()
    }

    /// Whether it ended unexpectedly.
    pub fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().unwrap().is_some())
    }

    /// The end of its output.
    pub fn said(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }

    async fn ended(&mut self) -> ExitStatus {
        let child = self.child.as_mut().expect("a running process");
        let mut status = None;
        wait_until(&format!("{} has ended", self.name), STOPS_WITHIN, async || {
            status = child.try_wait().unwrap();
            status.is_some()
        })
        .await;
        self.child = None;
        status.unwrap()
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("a running process");
        _ = kill_process(Pid::from_child(child), signal); // it may have ended by itself, which is detected elsewhere
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() && self.child.is_some() {
            eprintln!("--- end of the log of {}\n{}", self.name, self.said());
        }
        self.kill();
    }
}
