//! A process of the run, which is the same one after it was killed and started again.

use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::support::wait::wait_until;

/// A client that is told to stop first gets the answer that it waits for.
const STOPS_WITHIN: Duration = Duration::from_secs(120);

/// What to start, and the process if it runs. It ends with the value, and with the thread that started it.
pub struct Process {
    pub name: String,
    program: PathBuf,
    arguments: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
}

impl Process {
    /// Does not start it. Its output is added to a file of its name in the folder.
    pub fn new(name: &str, program: &Path, arguments: &[&str], folder: &Path) -> Process {
        Process {
            name: name.to_owned(),
            program: program.to_owned(),
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            log: folder.join(format!("{name}.log")),
            child: None,
        }
    }

    /// Waits for nothing: what it needs may be away.
    pub fn start(&mut self) {
        assert!(self.child.is_none(), "{} runs", self.name);
        let log = File::options().create(true).append(true).open(&self.log).unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(&self.program).args(&self.arguments);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.child = Some(command.spawn().unwrap());
    }

    /// Runs it to its end, which has to be a success.
    pub async fn succeeds(mut self) {
        self.start();
        let status = self.ended().await;
        assert!(status.success(), "{}: {status}\n{}", self.name, self.said());
    }

    /// SIGKILL; returns when it is dead. One that has ended by itself is dead, too.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// SIGSTOP: it does nothing more, its connections stay.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// SIGTERM; whether it ended well.
    pub async fn stop(&mut self) -> bool {
        self.signal(Signal::TERM);
        self.ended().await.success()
    }

    /// Whether it ended though nobody has asked it to.
    pub fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().unwrap().is_some())
    }

    /// The end of what it has said.
    pub fn said(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }

    async fn ended(&mut self) -> ExitStatus {
        let child = self.child.as_mut().expect("a process that runs");
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
        let child = self.child.as_ref().expect("a process that runs");
        _ = kill_process(Pid::from_child(child), signal); // it may have ended by itself, which is found
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
