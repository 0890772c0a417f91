//! The machine and the versions with which the figures were measured.

use std::path::Path;
use std::process::Command;

/// Names and values for the report, without those that cannot be determined.
pub fn describe(jars: &Path) -> Vec<(String, String)> {
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
