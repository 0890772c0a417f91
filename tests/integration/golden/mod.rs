//! Golden outputs: what the statements, the commands and the metrics look like. A test fails at the first line that
//! differs from the text files next to this one, and `UPDATE_GOLDEN=1` records them again.
//!
//! A line that begins with `$` is a command. To add one, write such a line and record the file. Values that differ
//! between two runs are replaced by placeholders. The events of the tests are from 2020, so that their age is
//! recognized. The files were recorded on PostgreSQL 18.

mod commands;
mod metrics;
mod statements;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;
use tokio_postgres::Client;

use crate::operating::commands::kafka;
use crate::operating::dead_letters::terminal::on_terminal;
use crate::support::command::{Ended, binary};
use crate::support::database::{Database, run};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/integration/golden");

/// The files with the configuration of the commands, and the role of each.
const ROLES: [(&str, &str); 3] =
    [("owner.toml", "postgres"), ("relay.toml", "RELAY_ROLE"), ("on-call.toml", "RELAY_ROLE_on_call")];

/// Whether the servers have the version of the recorded files. Other versions describe some statements differently.
fn is_recorded_version() -> bool {
    std::env::var("OUTBOX_RELAY_TEST_PG_VERSION").is_ok_and(|version| version == "18")
}

/// A database and a folder with configuration files.
struct Stage {
    client: Client,
    folder: TempDir,
    /// What differs between two runs, and its placeholder. Command lines contain the placeholders.
    names: Vec<(String, &'static str)>,
}

impl Stage {
    /// `role` is the name of the relay's role.
    async fn new(database: &Database, role: &str) -> Stage {
        let client = database.connect().await;
        let folder = tempfile::tempdir().unwrap();
        let sql = "SELECT split_part(current_setting('server_version'), ' ', 1), system_identifier::text,
                          current_setting('server_version_num')
                   FROM pg_control_system()";
        let server = client.query_one(sql, &[]).await.unwrap();
        let [version, identifier, number] = [0, 1, 2].map(|column| server.get::<_, String>(column));
        let address = database.url().split(['@', '/']).nth(3).unwrap().to_owned();
        let release = env!("CARGO_PKG_VERSION");
        let names = vec![
            (address, "DATABASE_SERVER"),
            (kafka(), "BROKER"),
            (folder.path().to_str().unwrap().to_owned(), "FOLDER"),
            (database.name().to_owned(), "golden"),
            (role.to_owned(), "RELAY_ROLE"),
            (identifier, "SYSTEM_IDENTIFIER"),
            (format!("PostgreSQL {version}"), "PostgreSQL VERSION"),
            (format!("connected, version {version}"), "connected, version VERSION"),
            (format!("\"postgres_version\": \"{version}\""), "\"postgres_version\": \"VERSION\""),
            (format!("postgres={number}"), "postgres=VERSION"),
            (format!("outbox-relay {release}"), "outbox-relay RELEASE"),
            (format!("\"relay_version\": \"{release}\""), "\"relay_version\": \"RELEASE\""),
            (format!("version=\"{release}\""), "version=\"RELEASE\""),
        ];
        let stage = Stage { client, folder, names };
        for entry in fs::read_dir(Path::new(FOLDER).join("configuration")).unwrap() {
            let path = entry.unwrap().path();
            stage.write(path.file_name().unwrap().to_str().unwrap(), &fs::read_to_string(&path).unwrap());
        }
        let outbox = fs::read_to_string(Path::new(FOLDER).join("configuration/outbox.toml")).unwrap();
        for (name, role) in ROLES {
            stage.write(name, &outbox.replace("postgres@", &format!("{role}@")));
        }
        stage
    }

    /// Writes a configuration file. Its mode is in a warning.
    fn write(&self, name: &str, text: &str) {
        let path = self.folder.path().join(name);
        fs::write(&path, self.real(text)).unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
    }

    /// Runs a file of SQL.
    async fn script(&self, file: &str) {
        let sql = fs::read_to_string(Path::new(FOLDER).join(file)).unwrap();
        run(&self.client, &self.real(&sql)).await;
    }

    /// The text with the values of this run.
    fn real(&self, text: &str) -> String {
        self.names.iter().fold(text.to_owned(), |text, (real, placeholder)| text.replace(placeholder, real))
    }

    /// The text as it is in every run.
    fn masked(&self, text: &str) -> String {
        let named = self.names.iter().fold(text.to_owned(), |text, (real, mask)| text.replace(real, mask));
        let counted =
            [("size          ", "\n"), ("rates         ", "\n"), ("\"size\": {", "}"), ("\"rates\": {", "}")];
        let counted = counted.iter().fold(named, |text, (begin, end)| {
            masked_between(&text, begin, end, |inside| replaced(inside, number, "N"))
        });
        // Any session of the server can hold vacuum back for a moment.
        let counted = masked_between(&counted, "vacuum        ", "\n", |_| "HOLDER".to_owned());
        let counted =
            masked_between(&counted, "\"vacuum_held_back_by\": ", "\n  \"size\"", |_| "HOLDER,".to_owned());
        // librdkafka counts milliseconds and repetitions.
        let counted =
            masked_between(&counted, "Connection refused (after", " (reason", |_| " DETAIL)".to_owned());
        replaced(&replaced(&replaced(&counted, time, "TIME"), age, "AGE"), age_in_seconds, "AGE")
    }

    /// Runs a line: environment variables, a command and its arguments. `n| ` before it types an answer on a terminal.
    fn command(&self, line: &str) -> Ended {
        let line = self.real(line);
        let (typed, line) = line.split_once("| ").map_or((None, &*line), |(typed, rest)| (Some(typed), rest));
        let is_variable = |word: &&str| word.starts_with("OUTBOX_RELAY");
        let words: Vec<&str> = line.split(' ').collect();
        let variables = words.iter().take_while(|word| is_variable(word)).count();
        let args = &words[variables..];
        let mut command = binary(args);
        command
            .env_remove("PGPASSWORD")
            .envs(words[..variables].iter().map(|word| word.split_once('=').unwrap()));
        if !args.contains(&"--config") && args[0] != "completions" {
            let file = match args[0] {
                "run" | "check-config" | "doctor" => "relay.toml",
                "migrate" => "owner.toml",
                _ => "on-call.toml",
            };
            command.arg("--config").arg(self.folder.path().join(file));
        }
        match typed {
            Some(typed) => {
                let mut ended = on_terminal(&command, &format!("{typed}\n"));
                // The terminal may show the answer before the question.
                ended.stdout = ended.stdout.replacen(&format!("{typed}\r\n"), "", 1).replace("\r\n", "\n");
                ended
            }
            None => Ended::of(command.stdin(Stdio::null())),
        }
    }

    /// Runs the lines of each file that begin with `$`, and compares the whole file. `psql` changes the database.
    async fn play(&self, files: &[&str]) {
        let mut differences = Vec::new();
        for file in files {
            let mut text = String::new();
            let recorded = fs::read_to_string(path(file)).unwrap();
            for line in recorded.lines().filter_map(|line| line.strip_prefix("$ ")) {
                text += &format!("$ {line}\n");
                match line.strip_prefix("psql ") {
                    Some(sql) => run(&self.client, &self.real(sql)).await,
                    None => text += &self.shown(line),
                }
            }
            differences.extend(difference(file, &text));
        }
        assert!(differences.is_empty(), "{}", differences.join("\n"));
    }

    /// What a command printed. Of a long script, only its checksum.
    fn shown(&self, line: &str) -> String {
        let Ended { code, stdout, stderr, .. } = self.command(line);
        let is_script = line.starts_with("completions") && code == 0;
        let stdout = if is_script { checksum(&stdout) } else { self.masked(&stdout) };
        format!("{stdout}--- exit code {code}\n{}\n", self.masked(&stderr))
    }
}

fn path(file: &str) -> PathBuf {
    Path::new(FOLDER).join(file).with_extension("txt")
}

/// Compares the text with a file. Returns the first line that differs.
fn difference(file: &str, text: &str) -> Option<String> {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(path(file), text).unwrap();
        return None;
    }
    let recorded = fs::read_to_string(path(file)).unwrap();
    if recorded == text {
        return None;
    }
    let spaces =
        if recorded.split_whitespace().eq(text.split_whitespace()) { " (only in spaces)" } else { "" };
    let (mut old, mut new) = (recorded.lines(), text.lines());
    let lines = std::iter::from_fn(|| Some((old.next(), new.next())));
    let (number, (old, new)) = (1..).zip(lines).find(|(_, (old, new))| old != new || old.is_none())?;
    let [old, new] = [old, new].map(|line| line.unwrap_or("the end"));
    Some(format!(
        "{file}.txt:{number} differs{spaces}\nrecorded: {old}\nnow:      {new}\nUPDATE_GOLDEN=1 records it"
    ))
}

fn checksum(text: &str) -> String {
    let hash = openssl::sha::sha256(text.as_bytes());
    let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256 {digits}\n")
}

/// Masks each part between these texts.
fn masked_between(text: &str, begin: &str, end: &str, mask: impl Fn(&str) -> String) -> String {
    let mut parts = text.split(begin);
    let mut masked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (inside, rest) = part.split_at(part.find(end).unwrap_or(part.len()));
        masked = masked + begin + &mask(inside) + rest;
    }
    masked
}

/// Replaces each part that `length` finds at the beginning of a word.
fn replaced(text: &str, length: impl Fn(&str) -> Option<usize>, with: &str) -> String {
    let (mut shown, mut rest, mut before) = (String::new(), text, ' ');
    while let Some(c) = rest.chars().next() {
        let found = if before.is_alphanumeric() { None } else { length(rest) };
        let (next, skipped) = found.map_or((&rest[..c.len_utf8()], c.len_utf8()), |found| (with, found));
        shown += next;
        before = rest[..skipped].chars().next_back().unwrap_or(' ');
        rest = &rest[skipped..];
    }
    shown
}

fn number(text: &str) -> Option<usize> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (end > 0 && text.starts_with(|c: char| c.is_ascii_digit())).then_some(end)
}

/// A time in RFC 3339 of this day.
fn time(text: &str) -> Option<usize> {
    let end = text.bytes().take(32).position(|byte| byte == b'Z')? + 1;
    let at = humantime::parse_rfc3339(&text[..end]).ok()?;
    let away = SystemTime::now().duration_since(at).unwrap_or_else(|later| later.duration());
    (away < Duration::from_secs(86_400)).then_some(end)
}

/// The time since 2020, such as `6 years 9 months 25 days 7h 3s`.
fn age(text: &str) -> Option<usize> {
    const UNITS: [&str; 9] = ["years", "months", "month", "days", "day", "h", "ms", "m", "s"];
    let mut length = 0;
    while let Some(part) = text[length..].strip_prefix(if length > 0 { " " } else { "" }) {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
        let unit = rest.strip_prefix(' ').unwrap_or(rest);
        let found = UNITS.iter().find(|known| rest.len() < part.len() && unit.starts_with(**known));
        let is_age = || part[..part.len() - rest.len()].parse().is_ok_and(|years: u32| years < 30);
        let Some(found) = found.filter(|found| length > 0 || **found == "years" && is_age()) else { break };
        length = text.len() - unit.len() + found.len();
    }
    (length > 0).then_some(length)
}

/// A number of seconds of several years, with a fraction.
fn age_in_seconds(text: &str) -> Option<usize> {
    let digits = text.chars().take_while(char::is_ascii_digit).count();
    let fraction = text[digits..].strip_prefix('.')?.chars().take_while(char::is_ascii_digit).count();
    (digits == 9 && fraction > 0).then_some(digits + 1 + fraction)
}
