//! The notification socket of systemd.

use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use tempfile::TempDir;

use super::relay::Relay;
use super::wait::wait_until;

const NOTIFY_TIMEOUT: Duration = Duration::from_secs(30);
const FED: &str = "WATCHDOG=1";

/// Lines, and the time at which each arrived.
type Lines = Mutex<Vec<(Instant, String)>>;

/// A socket that is read continuously, as systemd does, so that the sender never waits for a test.
#[derive(Debug)]
pub struct NotifySocket {
    folder: TempDir,
    lines: Arc<Lines>,
    /// The lines that have arrived up to the last call of `listen`.
    pub received: Vec<String>,
}

impl NotifySocket {
    pub fn bind() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let lines = Arc::new(Lines::default());
        let shared = Arc::downgrade(&lines);
        std::thread::spawn(move || listen(&socket, &shared));
        Self { folder, lines, received: Vec::new() }
    }

    pub fn tell(&self, relay: Relay) -> Relay {
        relay.set_environment("NOTIFY_SOCKET", self.folder.path().join("notify"))
    }

    /// Returns the lines that have arrived.
    pub fn listen(&mut self) -> &[String] {
        self.received = self.lines.lock().unwrap().iter().map(|(_, line)| line.clone()).collect();
        &self.received
    }

    pub async fn wait_for(&mut self, line: &str) {
        wait_until(&format!("systemd is notified of {line:?}"), NOTIFY_TIMEOUT, async || {
            self.listen().iter().any(|received| received.starts_with(line))
        })
        .await;
    }

    /// The times at which the watchdog was fed.
    pub fn feeds(&self) -> Vec<Instant> {
        let lines = self.lines.lock().unwrap();
        lines.iter().filter(|(_, line)| line == FED).map(|(at, _)| *at).collect()
    }

    /// The longest time between two watchdog messages so far.
    pub fn longest_silence(&self) -> Duration {
        let feeds = self.feeds();
        feeds.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
    }

    /// Whether the watchdog has been fed, but not for this time. systemd would restart the relay.
    pub fn is_silent_for(&self, period: Duration) -> bool {
        self.feeds().last().is_some_and(|fed| fed.elapsed() > period)
    }
}

/// Reads until the socket is dropped.
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
