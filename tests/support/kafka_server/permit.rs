//! A limit on the number of brokers that run at once, over all test binaries.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The limit over all tests. A broker takes about 350 MB.
const BROKERS_MAX: usize = 4;
/// How often a waiting test tries to lock a slot.
const LOCK_INTERVAL: Duration = Duration::from_millis(50);

/// The right to run some brokers. It consists of file locks, because several test binaries run at once.
pub(super) struct Permit {
    _locks: Vec<File>,
}

impl Permit {
    /// Waits until enough slots are free.
    pub(super) async fn acquire(brokers: usize) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("brokers");
        std::fs::create_dir_all(&folder).unwrap();
        // Only one test collects locks at a time. Two tests that each hold some of the locks would wait for each other forever.
        let _turn = loop {
            match lock(&folder.join("turn")) {
                Some(turn) => break turn,
                None => tokio::time::sleep(LOCK_INTERVAL).await,
            }
        };
        let mut free: Vec<PathBuf> =
            (1..=BROKERS_MAX).map(|number| folder.join(number.to_string())).collect();
        let mut locks = Vec::new();
        loop {
            free.retain(|file| {
                let locked = if locks.len() < brokers { lock(file) } else { None };
                let taken = locked.is_some();
                locks.extend(locked);
                !taken
            });
            if locks.len() == brokers {
                return Self { _locks: locks };
            }
            tokio::time::sleep(LOCK_INTERVAL).await;
        }
    }
}

/// The lock of a file, unless it is already locked. It lasts as long as the value.
fn lock(path: &Path) -> Option<File> {
    let file = File::options().create(true).append(true).open(path).unwrap();
    match file.try_lock() {
        Ok(()) => Some(file),
        Err(TryLockError::WouldBlock) => None,
        Err(TryLockError::Error(error)) => panic!("{}: {error}", path.display()),
    }
}
