//! The `process_` metrics of Prometheus clients, from the kernel.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Read from `/proc` at each scrape. Values that cannot be read keep their last value.
pub(super) struct Process {
    pub(super) cpu_seconds: Counter<f64, AtomicU64>,
    pub(super) resident_bytes: Gauge,
    pub(super) threads: Gauge,
    pub(super) open_fds: Gauge,
    pub(super) max_fds: Gauge,
    pub(super) start_seconds: Gauge<f64, AtomicU64>,
}

impl Process {
    /// The process must have just started.
    pub(super) fn new() -> Process {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let process = Process {
            cpu_seconds: Counter::default(),
            resident_bytes: Gauge::default(),
            threads: Gauge::default(),
            open_fds: Gauge::default(),
            max_fds: Gauge::default(),
            start_seconds: Gauge::default(),
        };
        process.start_seconds.set(now.as_secs_f64());
        process
    }

    pub(super) fn read(&self) {
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
    fn the_files_of_the_kernel_are_parsed() {
        let line = "7 (a ) b) S 1 7 7 0 -1 4194560 900 0 0 0 150 50 0 0 20 0 9 0 1234 99999 512 18446744073709551615";
        let stat = stat(line).unwrap();
        assert_eq!((stat.ticks, stat.threads, stat.pages), (200, 9, 512));
        assert_eq!(max_fds("Max cpu time  unlimited\nMax open files   1024    524288   files\n"), Some(1024));
    }

    #[test]
    fn this_process_has_memory_threads_open_files_and_a_start_time() {
        let process = Process::new();
        process.read();
        assert!(process.resident_bytes.get() > 1_000_000);
        assert!(process.threads.get() >= 1);
        assert!(process.open_fds.get() >= 3 && process.open_fds.get() < process.max_fds.get());
        assert!(process.start_seconds.get() > 1.7e9);
    }
}
