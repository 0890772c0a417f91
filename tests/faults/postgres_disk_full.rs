//! PostgreSQL runs out of disk space, on a small file system that the test mounts. Only root may do that.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::postgres_server::{PostgresServer, Shutdown, folder, give_to_server_user};
use crate::support::rows::{self, Filling};
use crate::support::wait::{STALLED, wait_until};
use crate::world;

/// A file system in memory. Dropping it unmounts it.
struct SmallDisk {
    place: TempDir,
}

impl SmallDisk {
    /// Returns `None` and prints a line if mounting is not allowed.
    fn mount(mib: u32) -> Option<Self> {
        let place = folder();
        let options = format!("size={mib}m,mode=0755");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(place.path()).output();
        match mounted {
            Ok(said) if said.status.success() => Some(Self { place }),
            Ok(said) => {
                println!("SKIPPED: no small disk: {}", String::from_utf8_lossy(&said.stderr).trim());
                None
            }
            Err(error) => {
                println!("SKIPPED: no small disk: {error}");
                None
            }
        }
    }

    fn folder(&self, name: &str) -> PathBuf {
        let folder = self.place.path().join(name);
        fs::create_dir(&folder).unwrap();
        give_to_server_user(&folder).unwrap();
        folder
    }

    /// Writes until nothing more fits, and returns what occupies the space.
    fn fill(&self) -> Ballast {
        let path = self.place.path().join("ballast");
        let mut file = File::create(&path).unwrap();
        for size in [1 << 20, 1 << 12, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
        Ballast(path)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily, because a server that is about to end may still have files open.
        _ = Command::new("umount").arg("--lazy").arg(self.place.path()).status();
    }
}

struct Ballast(PathBuf);

impl Ballast {
    fn remove(self) {
        fs::remove_file(&self.0).unwrap();
    }
}

#[tokio::test]
async fn relay_waits_for_a_table_that_cannot_grow_and_repeats_nothing() {
    let Some(disk) = SmallDisk::mount(16) else { return };
    let server = PostgresServer::start(&[]).await;
    let outbox = Outbox::create_on(&server, "table_full", 3).await;
    let place = disk.folder("tablespace");
    run(&outbox.client, &format!("CREATE TABLESPACE small LOCATION '{}'", place.display())).await;
    run(&outbox.client, "ALTER TABLE app.outbox SET TABLESPACE small").await;
    rows::insert(&outbox, "order", 100, 0..5_000, Filling::Nothing).await;
    let ballast = disk.fill();

    let mut relay = world::relay(&outbox).start().await;
    wait_until("the relay is not ready", STALLED, async || {
        relay.not_ready().await.is_some_and(|why| why.contains("SQLSTATE 53100"))
    })
    .await;
    // Several times, so that acknowledged rows are read again.
    let faults = relay.log().matches("53100").count();
    wait_until("the relay keeps retrying", STALLED, async || {
        relay.log().matches("53100").count() > faults + 5
    })
    .await;
    assert!(outbox.unsent().await > 0);
    ballast.remove();
    let freed = Instant::now();
    world::resumed(&outbox, "space for the table", freed).await;
    outbox.wait_until_drained(STALLED).await;
    world::wait_for_outages(&relay, 1).await;
    assert!(relay.is_running());
    world::verdict(&outbox, &mut [relay], "no space for the table").await.assert_exact();
    outbox.drop().await;
}

/// Without space for its log, PostgreSQL ends. Recovery needs space, too.
#[tokio::test]
async fn relay_waits_for_a_server_without_space_for_its_log() {
    let Some(disk) = SmallDisk::mount(96) else { return };
    let data = disk.folder("data");
    let settings = [("max_wal_size", "'4MB'"), ("min_wal_size", "'2MB'"), ("wal_keep_size", "0")];
    let mut server = PostgresServer::start_at(Path::new(&data), &settings).await;
    let mut outbox = Outbox::create_on(&server, "log_full", 3).await;
    let writers = world::under_load(&outbox).await;
    let mut relay = world::relay(&outbox).start().await;
    outbox.wait_until_settled(500, STALLED).await;
    let ballast = disk.fill();
    wait_until("the server has ended", STALLED, async || outbox.client.is_closed()).await;
    wait_until("the relay is not ready", STALLED, async || relay.not_ready().await.is_some()).await;
    tokio::time::sleep(Duration::from_secs(2)).await; // the outage
    ballast.remove();
    server.stop(Shutdown::Immediate);
    server.start_again().await;
    let back = Instant::now();
    outbox.reconnect().await;
    world::resumed(&outbox, "space for the log", back).await;
    writers.stop().await;
    assert!(relay.is_running());
    world::verdict(&outbox, &mut [relay], "no space for the log").await;
    outbox.drop().await;
}
