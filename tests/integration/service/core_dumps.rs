//! A relay that crashes leaves no core dump, which would contain passwords and payloads.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

use crate::operating::commands::nowhere;
use crate::support::command::relay_binary;
use crate::support::relay::Relay;
use crate::support::wait::{STALLED, wait_until};

const PASSWORD: &str = "hunter2-7Q4z";

/// The end of a relay that was aborted after it had read its password.
async fn aborted(folder: &Path, allows: Option<&str>) -> ExitStatus {
    let relay = Relay::new()
        .set("postgres", "url", format!("postgres://relay@{}/app", nowhere()))
        .set("postgres", "password", PASSWORD)
        .set("kafka", "bootstrap_servers", nowhere())
        .set("admin", "listen", "off");
    let config = relay.write_config(folder);
    let log = folder.join("log");
    let mut relay = Command::new(relay_binary())
        .args(["run", "--config"])
        .arg(&config)
        .envs(allows.map(|value| ("OUTBOX_RELAY_ALLOW_CORE_DUMPS", value)))
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log).unwrap())
        .spawn()
        .unwrap();
    wait_until("the relay uses its password", STALLED, async || {
        fs::read_to_string(&log).unwrap().contains("postgres unavailable")
    })
    .await;
    kill_process(Pid::from_child(&relay), Signal::ABORT).unwrap();
    relay.wait().unwrap()
}

#[tokio::test]
async fn a_crash_writes_no_core_dump_unless_allowed() {
    // The relay inherits the limit.
    let limit = getrlimit(Resource::Core);
    setrlimit(Resource::Core, Rlimit { current: limit.maximum, ..limit }).unwrap();
    for (allows, dumps) in [(None, false), (Some("0"), false), (Some("1"), limit.maximum != Some(0))] {
        let folder = tempfile::tempdir().unwrap();
        let status = aborted(folder.path(), allows).await;
        assert_eq!(status.signal(), Some(Signal::ABORT.as_raw()));
        assert_eq!(status.core_dumped(), dumps, "{allows:?}: {status}");
        let names: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
        println!("{allows:?}: {status}, files {names:?}");
        assert!(dumps || names.len() == 2, "{names:?}");
    }
}
