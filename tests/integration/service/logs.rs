//! The log formats. JSON lines and journal entries have the fields that docs/logs.md lists.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::command::binary;
use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::relay::{Relay, RelayProcess};
use crate::support::wait::{STALLED, wait_until};

const LEVELS: [&str; 5] = ["ERROR", "WARN", "INFO", "DEBUG", "TRACE"];

/// The fields in the page, and their names in the journal.
fn documented() -> Vec<(String, String)> {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/logs.md")).unwrap();
    let section = page.split("\n## Fields\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let code = |row: &str, at: usize| row.split('`').nth(at).unwrap().to_owned();
    rows.map(|row| (code(row, 1), code(row, 3))).collect()
}

/// All Rust files of the relay, as one text.
fn source(folder: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            text += &source(&path);
        } else {
            text += &std::fs::read_to_string(&path).unwrap();
        }
    }
    text
}

#[test]
fn page_lists_the_event_codes_of_the_source() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("docs/logs.md")).unwrap();
    let section = page.split("\n## Event codes\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let documented: BTreeSet<&str> = rows.map(|row| row.split('`').next().unwrap()).collect();
    let crates = source(&root.join("crates"));
    let all = source(&root.join("src")) + &crates;
    // The codes of outages are the second argument. Commands print fields whose names look like codes of events.
    let places = [
        ("code = \"", 0),
        ("\n            (\"event_", 0),
        ("Availability::new(\"", 2),
        ("Availability::lasting(\"", 2),
    ];
    let mut used = BTreeSet::new();
    for (before, at) in places {
        let source = if before.ends_with('_') { &crates } else { &all };
        let codes = source.split(before).skip(1).map(|text| text.split('"').nth(at).unwrap());
        used.extend(
            codes.map(|code| if before.ends_with('_') { format!("event_{code}") } else { code.to_owned() }),
        );
    }
    used.remove("test");
    let documented = documented.into_iter().map(str::to_owned).collect();
    assert_eq!(
        used, documented,
        "docs/logs.md and the source differ; write each code as a literal where it is logged"
    );
}

/// Inserts an event that is refused, and one whose topic is created later.
async fn let_events_wait(outbox: &mut Outbox) {
    let insert = "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, headers)
                  VALUES ('order', 'k', 'x', '{\"h\": 1}'), ('late', 'k', 'x', NULL)";
    run(&outbox.client, insert).await;
    wait_until("there are a dead letter and a hold", STALLED, async || {
        outbox.dead_letters().await == 1 && outbox.holds().await.len() == 1
    })
    .await;
    outbox.create_topic("late", 1).await;
    wait_until("the event is published", STALLED, async || {
        outbox.unsent().await == 0 && outbox.holds().await.is_empty()
    })
    .await;
}

/// Pauses, resumes and reloads the configuration.
async fn steer(outbox: &Outbox, config: Relay, relay: &mut RelayProcess) {
    outbox.operator().command(&["pause"]).succeeds();
    relay.wait_for_log("paused everything (no reason given). To resume, run ").await;
    outbox.operator().command(&["resume"]).succeeds();
    relay.wait_for_log("resumed everything").await;
    relay.reload(config);
    relay.wait_for_log("configuration reloaded").await;
}

/// An outage: the role may not log in until this is called again with `LOGIN`.
async fn outage(outbox: &Outbox, login: &str) {
    let role = outbox.roles.relay();
    let end = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'");
    run(&outbox.client, &format!("ALTER ROLE {role} {login}")).await;
    run(&outbox.client, &end).await;
}

fn lines(relay: &RelayProcess) -> Vec<Value> {
    let log = relay.log();
    log.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

#[tokio::test]
async fn every_json_line_has_the_keys_and_fields_that_the_page_lists() {
    let documented: BTreeSet<String> = documented().into_iter().map(|(field, _)| field).collect();
    for level in ["info", "trace"] {
        let mut outbox = Outbox::create(&format!("json_{level}"), 1).await;
        let relay = outbox.relay().set("log", "format", "json").set("log", "level", level);
        let mut running = relay.clone().start().await;
        let_events_wait(&mut outbox).await;
        steer(&outbox, relay, &mut running).await;
        let mut relay = running;
        outage(&outbox, "NOLOGIN").await;
        relay.wait_for_log("postgres unavailable").await;
        outage(&outbox, "LOGIN").await;
        relay.wait_for_log("postgres available again").await;
        assert!(relay.stop().await.success());
        let mut seen = BTreeSet::new();
        for line in lines(&relay) {
            let keys: Vec<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
            let mut sorted = keys.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, ["fields", "level", "target", "timestamp"], "{line}");
            assert!(LEVELS.contains(&line["level"].as_str().unwrap()), "{line}");
            let at = line["timestamp"].as_str().unwrap();
            assert!(humantime::parse_rfc3339(at).is_ok() && at.len() == 27, "{line}");
            assert!(line["fields"]["message"].is_string(), "{line}");
            let target = line["target"].as_str().unwrap();
            if target.starts_with("outbox_relay") || target == "librdkafka" {
                seen.extend(line["fields"].as_object().unwrap().keys().cloned());
            }
        }
        let unknown: Vec<&String> = seen.difference(&documented).collect();
        assert!(unknown.is_empty(), "docs/logs.md does not list {unknown:?}");
        let unseen: Vec<&String> = documented.difference(&seen).collect();
        assert_eq!(unseen, ["place"], "every field must occur, except the one that only a bug logs");
        outbox.drop().await;
    }
}

/// A program that reads the log would miss the reason why the relay ended.
#[tokio::test]
async fn warnings_at_start_and_the_reason_for_the_end_are_json() {
    let outbox = Outbox::create("json_end", 1).await;
    let relay = outbox.relay().set("log", "format", "json").set("outbox", "table", "app.other");
    let mut relay = relay.set("admin", "listen", "0.0.0.0:0").spawn(&["run"]);
    assert_eq!(relay.ended().await.code(), Some(78), "{}", relay.log());
    let lines = lines(&relay);
    let (first, last) = (lines.first().unwrap(), lines.last().unwrap());
    let text = |line: &Value| line["fields"]["message"].to_string();
    assert!(first["level"] == "WARN" && text(first).contains("0.0.0.0"), "{first}");
    assert!(last["level"] == "ERROR" && text(last).contains("the database cannot be used"), "{last}");
    outbox.drop().await;
}

/// Parses an entry in the journal's protocol: a name, the length of the value, the value.
fn entry(datagram: &[u8]) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    let mut rest = datagram;
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n' || *byte == b'=') {
        let name = String::from_utf8(rest[..end].to_vec()).unwrap();
        let separator = rest[end];
        rest = &rest[end + 1..];
        let length = if separator == b'=' {
            rest.iter().position(|byte| *byte == b'\n').unwrap()
        } else {
            let (length, value) = rest.split_at(8);
            rest = value;
            usize::try_from(u64::from_le_bytes(length.try_into().unwrap())).unwrap()
        };
        fields.push((name, String::from_utf8(rest[..length].to_vec()).unwrap()));
        assert_eq!(rest[length], b'\n');
        rest = &rest[length + 1..];
    }
    fields
}

/// A process that is killed at the end of the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // An error means that it has already ended.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Gives the relay another journal: a mount namespace in which the socket belongs to the test.
fn with_private_journal() -> Option<Command> {
    let mut unshare = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        unshare.arg("--map-root-user");
    }
    unshare.arg("--mount");
    let mut probe = Command::new(unshare.get_program());
    let works = probe.args(unshare.get_args()).args(["mount", "-t", "tmpfs", "tmpfs", "/run"]).output();
    works.is_ok_and(|probed| probed.status.success()).then_some(unshare)
}

#[tokio::test]
async fn journal_entries_have_the_fields_that_the_page_lists() {
    let Some(mut unshare) = with_private_journal() else {
        println!("SKIPPED: mount namespaces are not available");
        return;
    };
    let mut outbox = Outbox::create("journald", 1).await;
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    std::fs::create_dir(&journal).unwrap();
    let socket = UnixDatagram::bind(journal.join("socket")).unwrap();
    socket.set_nonblocking(true).unwrap();
    let relay = outbox.relay().set("log", "format", "journald");
    let config = relay.set("log", "level", "info").write_config(folder.path());
    let program = binary(&["run"]);
    let relay = unshare
        .args(["sh", "-c"])
        .arg(
            "mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/journal && mount --bind \"$0\" /run/systemd/journal \
             && exec \"$@\"",
        )
        .arg(&journal)
        .arg(program.get_program())
        .args(["run", "--config"])
        .arg(&config)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut relay = Killed(relay);
    let mut entries: Vec<Vec<(String, String)>> = Vec::new();
    let mut listen = || {
        let mut datagram = vec![0; 65_536];
        while let Ok(length) = socket.recv(&mut datagram) {
            entries.push(entry(&datagram[..length]));
        }
        entries.clone()
    };
    let says = |entries: &[Vec<(String, String)>], text: &str| {
        entries.iter().flatten().any(|(name, value)| name == "MESSAGE" && value.contains(text))
    };
    wait_until("the relay has started", STALLED, async || says(&listen(), "relay started")).await;
    let_events_wait(&mut outbox).await;
    outage(&outbox, "NOLOGIN").await;
    wait_until("the outage has begun", STALLED, async || says(&listen(), "postgres unavailable")).await;
    outage(&outbox, "LOGIN").await;
    wait_until("the outage has ended", STALLED, async || says(&listen(), "postgres available again")).await;
    rustix::process::kill_process(rustix::process::Pid::from_child(&relay.0), rustix::process::Signal::TERM)
        .unwrap();
    let mut status = None;
    wait_until("the relay has ended", STALLED, async || {
        status = relay.0.try_wait().unwrap();
        status.is_some()
    })
    .await;
    assert!(status.unwrap().success());

    let entries = listen();
    let of = |text: &str| {
        let found = entries.iter().find(|entry| says(&[(*entry).clone()], text));
        found.unwrap_or_else(|| panic!("{text}: {entries:#?}")).clone()
    };
    let value = |entry: &[(String, String)], name: &str| {
        let found = entry.iter().find(|(field, _)| field == name);
        found.unwrap_or_else(|| panic!("{name}: {entry:#?}")).1.clone()
    };
    let relaying = of("relay started");
    assert_eq!(value(&relaying, "PRIORITY"), "5");
    assert_eq!(value(&relaying, "SYSLOG_IDENTIFIER"), "outbox-relay");
    assert_eq!(value(&relaying, "TARGET"), "outbox_relay::cli::run");
    assert_eq!(value(&relaying, "OUTBOX_RELAY_TABLE"), "app.outbox");
    let refused = of("moved to the dead letters");
    assert_eq!(value(&refused, "PRIORITY"), "4");
    assert_eq!(value(&refused, "OUTBOX_RELAY_REASON"), "invalid-headers");
    assert_eq!(value(&refused, "OUTBOX_RELAY_TOPIC"), outbox.topic("order"));
    let known: BTreeSet<String> = documented().into_iter().map(|(_, name)| name).collect();
    let own = ["PRIORITY", "SYSLOG_IDENTIFIER", "TARGET", "CODE_FILE", "CODE_LINE"];
    let mut seen: BTreeSet<String> = entries.iter().flatten().map(|(name, _)| name.clone()).collect();
    for name in own {
        assert!(seen.remove(name), "{name}");
    }
    let unknown: Vec<&String> = seen.difference(&known).collect();
    assert!(unknown.is_empty(), "docs/logs.md does not list {unknown:?}");
    outbox.drop().await;
}

/// The runbook filters the journal by priority.
#[test]
fn error_that_ends_the_relay_has_the_priority_of_errors_in_the_journal() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("stderr");
    let stderr = std::fs::File::create(&place).unwrap();
    let found = stderr.metadata().unwrap();
    let mut relay = binary(&["run", "--config", "/nonexistent.toml"]);
    relay.env("JOURNAL_STREAM", format!("{}:{}", found.dev(), found.ino()));
    assert!(!relay.stderr(stderr).status().unwrap().success());
    let text = std::fs::read_to_string(&place).unwrap();
    assert!(!text.is_empty() && text.lines().all(|line| line.starts_with("<3>")), "{text}");
}
