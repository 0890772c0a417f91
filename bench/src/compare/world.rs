//! What the comparison runs with: the servers that scripts/bench has started, the relay's binary, Debezium's jars, the machine,
//! and how much is measured.

use super::debezium::{Connect, Tuning};
use super::drains;
use super::results::{Setting, Store};
use crate::place::Site;
use crate::settings::Settings;
use anyhow::{Context, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const SLOTS_FREE_WITHIN: Duration = Duration::from_secs(60);

pub struct World {
    pub postgres: String,
    pub kafka: String,
    /// A second listener of the broker, and the address that it advertises.
    pub kafka_behind: String,
    pub kafka_proxy: String,
    /// The folder of Debezium's jars.
    pub jars: PathBuf,
    /// The folder for logs and reduced results.
    pub folder: PathBuf,
    relay: PathBuf,
}

impl World {
    pub fn from_environment(folder: PathBuf) -> anyhow::Result<Self> {
        Ok(Self {
            postgres: variable("OUTBOX_RELAY_TEST_POSTGRES_URL")?,
            kafka: variable("OUTBOX_RELAY_TEST_KAFKA")?,
            kafka_behind: variable("OUTBOX_RELAY_TEST_KAFKA_BEHIND")?,
            kafka_proxy: variable("OUTBOX_RELAY_TEST_KAFKA_PROXY")?,
            jars: variable("OUTBOX_BENCHMARKS_JARS")?.into(),
            relay: variable("OUTBOX_BENCHMARKS_RELAY")?.into(),
            folder,
        })
    }

    /// The default settings with the addresses of the servers.
    pub fn settings(&self) -> Settings {
        let settings = Settings::new(self.relay.clone(), None).with("postgres", "url", &self.postgres);
        settings.with("kafka", "bootstrap_servers", &self.kafka)
    }

    pub async fn start_connect(&self, tuning: Tuning) -> anyhow::Result<Connect> {
        let folder = self.folder.join("connect");
        Connect::start(&self.jars, &folder, &self.kafka, tuning).await
    }

    /// The settings of Debezium that the relay is compared with.
    pub fn fastest_debezium(&self) -> anyhow::Result<Tuning> {
        Ok(drains::fastest_debezium(&Store::published().load()?))
    }

    /// Removes what a failed part has left behind, above all slots, because the server keeps WAL for them.
    pub async fn clean(&self) -> anyhow::Result<()> {
        let site = Site::connect(self.settings()).await?;
        let client = site.database.get().await?;
        // The server may still be about to notice that the client of a slot is gone.
        let begun = Instant::now();
        while client
            .query_opt(
                "SELECT FROM pg_replication_slots WHERE active AND slot_name ~ '^debezium_[0-9]+$' LIMIT 1",
                &[],
            )
            .await?
            .is_some()
        {
            ensure!(begun.elapsed() < SLOTS_FREE_WITHIN, "a replication slot of this server is still in use");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        client
            .batch_execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name ~ '^debezium_[0-9]+$'",
            )
            .await?;
        const PUBLICATIONS: &str =
            "SELECT quote_ident(pubname) FROM pg_publication WHERE pubname ~ '^debezium_[0-9]+$'";
        for publication in client.query(PUBLICATIONS, &[]).await? {
            client.batch_execute(&format!("DROP PUBLICATION {}", publication.get::<_, &str>(0))).await?;
        }
        for leftover in site.leftovers().await? {
            site.remove(&leftover).await?;
        }
        Ok(())
    }

    /// The machine, the versions and the settings for the report.
    pub async fn describe(&self) -> anyhow::Result<Setting> {
        let mut setting = describe(&self.jars);
        let client = Site::connect(self.settings()).await?.database.get().await?;
        let query = "SELECT name, current_setting(name) FROM pg_settings WHERE name IN ('server_version', \
                     'shared_buffers', 'max_wal_size', 'checkpoint_timeout', 'wal_level', 'fsync', \
                     'synchronous_commit', 'full_page_writes', 'logical_decoding_work_mem') ORDER BY name";
        for row in client.query(query, &[]).await? {
            setting.push((format!("PostgreSQL: {}", row.get::<_, &str>(0)), row.get(1)));
        }
        Ok(setting)
    }
}

pub fn variable(name: &str) -> anyhow::Result<String> {
    std::env::var(name).with_context(|| format!("{name} is not set: run scripts/bench"))
}

/// The rows of a full drain.
const DRAIN_ROWS: u64 = 2_000_000;
/// The share of the rows and of the time in a quick run.
const QUICK_ROWS: f64 = 0.05;
const QUICK_TIME: f64 = 1.0 / 6.0;

pub struct Size {
    pub runs: u32,
    rows: f64,
    time: f64,
}

impl Size {
    pub fn new(runs: u32, drain_rows: Option<u64>, quick: bool) -> Self {
        let rows = match drain_rows {
            Some(rows) => rows as f64 / DRAIN_ROWS as f64,
            None if quick => QUICK_ROWS,
            None => 1.0,
        };
        Self { runs: if quick { 1 } else { runs }, rows, time: if rows < 0.5 { QUICK_TIME } else { 1.0 } }
    }

    /// Whether the figures come from less than a full measurement.
    pub fn is_reduced(&self) -> bool {
        self.rows < 1.0 || self.runs < 3
    }

    /// Whether less is measured than in a full run, however often.
    pub fn is_scaled(&self) -> bool {
        self.rows < 1.0
    }

    pub fn rows(&self, full: u64) -> u64 {
        ((full as f64 * self.rows) as u64).max(1)
    }

    pub fn time(&self, full: Duration) -> Duration {
        full.mul_f64(self.time)
    }
}

/// Names and values for the report, without those that cannot be determined.
fn describe(jars: &Path) -> Setting {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let found = [
        ("CPU", cpu_model(&read("/proc/cpuinfo")).map(|model| format!("{cores} cores of {model}"))),
        ("memory", memory(&read("/proc/meminfo"))),
        ("kernel", first_line(&read("/proc/sys/kernel/osrelease"))),
        ("outbox-relay", output("git", &["describe", "--always", "--dirty", "--tags"])),
        ("rustc", output("rustc", &["--version"])),
        ("Java", java_version()),
        ("Kafka, Kafka Connect", jar_version(jars, "connect-runtime-")),
        ("Debezium", jar_version(jars, "debezium-connector-postgres-")),
    ];
    found.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// The current time, such as `2026-01-31 12:00 UTC`.
pub fn now() -> String {
    output("date", &["-u", "+%Y-%m-%d %H:%M UTC"]).unwrap_or_default()
}

fn cpu_model(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn memory(meminfo: &str) -> Option<String> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(format!("{:.1} GiB", kibibytes as f64 / (1 << 20) as f64))
}

/// Java prints its version to stderr.
fn java_version() -> Option<String> {
    let said = Command::new("java").arg("-version").output().ok()?;
    first_line(&String::from_utf8_lossy(&said.stderr))
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let said = Command::new(program).args(arguments).output().ok()?;
    if said.status.success() { first_line(&String::from_utf8_lossy(&said.stdout)) } else { None }
}

fn first_line(text: &str) -> Option<String> {
    text.lines().next().filter(|line| !line.is_empty()).map(str::to_owned)
}

/// The version in the name of the jar that starts with `beginning`.
fn jar_version(jars: &Path, beginning: &str) -> Option<String> {
    let names = std::fs::read_dir(jars).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    version_in(names, beginning)
}

fn version_in(mut names: impl Iterator<Item = String>, beginning: &str) -> Option<String> {
    names.find_map(|name| Some(name.strip_prefix(beginning)?.strip_suffix(".jar")?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_run_has_a_twentieth_of_the_rows_and_counts_as_reduced() {
        let quick = Size::new(3, None, true);
        assert_eq!((quick.runs, quick.rows(2_000_000)), (1, 100_000));
        assert_eq!(quick.time(Duration::from_secs(60)), Duration::from_secs(10));
        assert!(quick.is_reduced());
    }

    #[test]
    fn everything_changes_in_proportion_to_the_rows_of_a_drain() {
        let full = Size::new(3, None, false);
        assert_eq!(full.rows(10_000_000), 10_000_000);
        assert!(!full.is_reduced());
        let half = Size::new(3, Some(1_000_000), false);
        assert_eq!((half.rows(10_000_000), half.rows(1)), (5_000_000, 1));
        assert!(half.is_reduced());
    }

    #[test]
    fn the_machine_is_read_from_the_files_in_proc() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Fast CPU @ 3 GHz\n";
        assert_eq!(cpu_model(cpuinfo).as_deref(), Some("Fast CPU @ 3 GHz"));
        assert_eq!(cpu_model("processor : 0"), None);
        assert_eq!(memory("MemTotal:       25165824 kB\nMemFree: 1 kB").as_deref(), Some("24.0 GiB"));
    }

    #[test]
    fn versions_are_read_from_the_names_of_jars() {
        let names =
            || ["a-1.jar", "debezium-connector-postgres-3.7.0.Final.jar"].map(str::to_owned).into_iter();
        assert_eq!(version_in(names(), "debezium-connector-postgres-").as_deref(), Some("3.7.0.Final"));
        assert_eq!(version_in(names(), "connect-runtime-"), None);
    }
}
