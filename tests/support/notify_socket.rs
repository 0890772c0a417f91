//! What systemd listens on.

use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use tempfile::TempDir;

use super::relay::Relay;
use super::wait::wait_until;

const HEARD_WITHIN: Duration = Duration::from_secs(30);
const FED: &str = "WATCHDOG=1";

/// Lines, each with the moment at which it came.
type Lines = Mutex<Vec<(Instant, String)>>;

/// A socket that is listened to all the time, as systemd does: who sends must not wait for a test.
#[derive(Debug)]
pub struct NotifySocket {
    folder: TempDir,
    lines: Arc<Lines>,
    /// What has come until the last look, line by line.
    pub heard: Vec<String>,
}

impl NotifySocket {
    pub fn bind() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let lines = Arc::new(Lines::default());
        let shared = Arc::downgrade(&lines);
        std::thread::spawn(move || listen(&socket, &shared));
        Self { folder, lines, heard: Vec::new() }
    }

    pub fn tell(&self, relay: Relay) -> Relay {
        relay.set_environment("NOTIFY_SOCKET", self.folder.path().join("notify"))
    }

    /// Takes in what has come, line by line.
    pub fn listen(&mut self) -> &[String] {
        self.heard = self.lines.lock().unwrap().iter().map(|(_, line)| line.clone()).collect();
        &self.heard
    }

    pub async fn wait_for(&mut self, line: &str) {
        wait_until(&format!("systemd is told {line:?}"), HEARD_WITHIN, async || {
            self.listen().iter().any(|heard| heard.starts_with(line))
        })
        .await;
    }

    /// When the watchdog was fed.
    pub fn feeds(&self) -> Vec<Instant> {
        let lines = self.lines.lock().unwrap();
        lines.iter().filter(|(_, line)| line == FED).map(|(at, _)| *at).collect()
    }

    /// The longest time between two signs for the watchdog, so far.
    pub fn longest_silence(&self) -> Duration {
        let feeds = self.feeds();
        feeds.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
    }

    /// What systemd waits for: that the watchdog is not fed for so long, after it was.
    pub fn is_silent_for(&self, period: Duration) -> bool {
        self.feeds().last().is_some_and(|fed| fed.elapsed() > period)
    }
}

/// Until nobody asks any more.
fn listen(socket: &UnixDatagram, lines: &Weak<Lines>) {
    let mut datagram = [0; 8_192];
    while let Some(lines) = lines.upgrade() {
        if let Ok(length) = socket.recv(&mut datagram) {
            let text = std::str::from_utf8(&datagram[..length]).unwrap();
            let now = Instant::now();
            lines.lock().unwrap().extend(text.lines().map(|line| (now, line.to_owned())));
        }
    }
}
