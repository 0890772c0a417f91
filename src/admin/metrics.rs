//! `/metrics`: the metrics of the relay and of its process as OpenMetrics text. A scrape sends no request to Kafka or Postgres.

use prometheus_client::encoding::text;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use relay::health::stats::Stats;
use std::fs;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use std::time::{SystemTime, UNIX_EPOCH};

pub use relay::health::metrics::{Metric, MetricKind, Question};

/// All metrics in their order. `docs/metrics.md` is rendered from it.
pub static CATALOGUE: LazyLock<Vec<Metric>> =
    LazyLock::new(|| [Stats::METRICS, Process::METRICS, &[BUILD]].concat());

const BUILD: Metric = Metric {
    name: "outbox_relay_build_info",
    kind: MetricKind::Info,
    labels: &["version"],
    answers: Question::Costs,
    help: "Version of the relay",
    bad: "several versions for longer than a deployment takes",
};

relay::metrics! {
    /// The `process_` metrics of Prometheus clients, read from `/proc` at each scrape. Values that cannot be read keep their
    /// last value.
    struct Process {
        Costs {
            cpu_seconds: FloatCounter "process_cpu_seconds_total" [],
                "CPU time of the process", "an increase of nearly one second per second: the relay is at its limit";
            resident_bytes: Gauge "process_resident_memory_bytes" [],
                "Resident memory of the process", "an increase that lasts for hours";
            threads: Gauge "process_threads" [],
                "Threads of the process", "";
            open_fds: Gauge "process_open_fds" [],
                "Open file descriptors", "near process_max_fds";
            max_fds: Gauge "process_max_fds" [],
                "Maximum number of open file descriptors", "";
            start_seconds: FloatGauge "process_start_time_seconds" [],
                "Start time of the process, in seconds since 1970", "a change: the process was restarted";
        }
    }
}

pub struct Metrics {
    registry: Registry,
    stats: Arc<Stats>,
    process: Process,
}

impl Metrics {
    /// Registers every metric. The process must have just started.
    pub fn new(stats: &Arc<Stats>) -> Metrics {
        let (mut registry, process) = (Registry::default(), Process::zero());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        process.start_seconds.set(now.as_secs_f64());
        stats.register(&mut registry);
        process.register(&mut registry);
        BUILD.register(&mut registry, Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        Metrics { registry, stats: Arc::clone(stats), process }
    }

    pub fn text(&self) -> Result<String, std::fmt::Error> {
        self.process.read();
        self.stats.refresh();
        let mut text = String::new();
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

impl Process {
    fn read(&self) {
        if let Some(stat) = fs::read_to_string("/proc/self/stat").ok().as_deref().and_then(stat) {
            let seconds = stat.ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
            self.cpu_seconds.inner().store(seconds.to_bits(), Ordering::Relaxed);
            self.threads.set(stat.threads);
            self.resident_bytes.set(stat.pages * rustix::param::page_size() as i64);
        }
        if let Ok(entries) = fs::read_dir("/proc/self/fd") {
            self.open_fds.set(entries.count() as i64 - 1); // without the one that reads them
        }
        if let Some(most) = fs::read_to_string("/proc/self/limits").ok().as_deref().and_then(max_fds) {
            self.max_fds.set(most);
        }
    }
}

/// Values from `/proc/self/stat`.
struct Stat {
    ticks: u64,
    threads: i64,
    pages: i64,
}

/// proc(5) numbers the fields. The first one after the program name, which may contain anything, is number 3.
fn stat(line: &str) -> Option<Stat> {
    let fields: Vec<&str> = line.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3);
    let ticks = |number| field(number)?.parse::<u64>().ok();
    Some(Stat {
        ticks: ticks(14)? + ticks(15)?,
        threads: field(20)?.parse().ok()?,
        pages: field(24)?.parse().ok()?,
    })
}

fn max_fds(limits: &str) -> Option<i64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_shown_in_the_order_of_the_catalogue() {
        let stats = Stats::new();
        stats.name_held(&[("gone".to_owned(), "stays".to_owned())]);
        stats.name_held(&[("events.order".to_owned(), "unknown-topic".to_owned())]);
        let text = Metrics::new(&Arc::new(stats)).text().unwrap();
        let described: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next()).collect();
        // One with labels is shown as soon as it has a value.
        let is_shown = |metric: &&Metric| metric.labels.is_empty() || described.contains(&metric.family());
        let wanted: Vec<&str> = CATALOGUE.iter().filter(is_shown).map(Metric::family).collect();
        assert_eq!(described, wanted);
        assert!(text.contains("outbox_relay_build_info{version=\""), "{text}");
        let held = "outbox_relay_topic_held{topic=\"events.order\",reason=\"unknown-topic\"} 1\n";
        assert!(text.contains(held) && !text.contains("gone"), "{text}");
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn kinds_units_and_samples_match_the_catalogue() {
        let text = Metrics::new(&Arc::new(Stats::new())).text().unwrap();
        for metric in CATALOGUE.iter().filter(|metric| metric.labels.is_empty()) {
            assert!(!metric.help.ends_with('.'), "the encoder appends the full stop: {}", metric.help);
            let family = metric.family();
            let kind = format!("# TYPE {family} {}\n", format!("{:?}", metric.kind).to_lowercase());
            assert!(text.contains(&kind), "not in /metrics: {kind}");
            let unit = text.lines().find_map(|line| line.strip_prefix(&format!("# UNIT {family} ")));
            assert_eq!(unit, metric.unit(), "{family}");
            for sample in metric.samples() {
                let is_shown = |line: &str| line.strip_prefix(&sample)?.starts_with([' ', '{']).then_some(());
                assert!(text.lines().any(|line| is_shown(line).is_some()), "no sample of {sample}: {text}");
            }
        }
    }

    #[test]
    fn the_files_of_the_kernel_are_parsed() {
        let line = "7 (a ) b) S 1 7 7 0 -1 4194560 900 0 0 0 150 50 0 0 20 0 9 0 1234 99999 512 18446744073709551615";
        let stat = stat(line).unwrap();
        assert_eq!((stat.ticks, stat.threads, stat.pages), (200, 9, 512));
        assert_eq!(max_fds("Max cpu time  unlimited\nMax open files   1024    524288   files\n"), Some(1024));
    }

    #[test]
    fn this_process_has_memory_threads_open_files_and_a_start_time() {
        let process = Process::zero();
        process.read();
        assert!(process.resident_bytes.get() > 1_000_000);
        assert!(process.threads.get() >= 1);
        assert!(process.open_fds.get() >= 3 && process.open_fds.get() < process.max_fds.get());
        let metrics = Metrics::new(&Arc::new(Stats::new()));
        assert!(metrics.process.start_seconds.get() > 1.7e9);
    }

    #[test]
    fn topics_beyond_the_limit_are_counted_together() {
        let stats = Arc::new(Stats::new());
        for topic in 0..1_000 {
            stats.count_topic(&format!("events.{topic}"), 1, 10);
        }
        stats.count_topic("events.0", 1, 10);
        let text = Metrics::new(&stats).text().unwrap();
        let series =
            text.lines().filter(|line| line.starts_with("outbox_relay_topic_records_total{")).count();
        assert_eq!(series, 51, "{text}");
        assert!(text.contains("outbox_relay_topic_records_total{topic=\"other\"} 950\n"), "{text}");
        assert!(text.contains("outbox_relay_topic_bytes_total{topic=\"events.0\"} 20\n"), "{text}");
    }
}
