//! The values in the file and in the environment, each with its place.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use crate::config::catalogue::{SECTIONS, SETTINGS};
use crate::config::findings::{Findings, Place, Problem};
use crate::config::properties;
use crate::config::reading::lines::Lines;
use crate::config::reading::nearest::nearest;
use crate::config::reading::values::{self, Raw};
use crate::config::setting::{self, Kind, Setting, VARIABLE_PREFIX};

/// A value with its place.
#[derive(Clone, Debug)]
pub(in crate::config) struct Entry {
    pub(in crate::config) raw: Raw,
    pub(in crate::config) place: Place,
}

/// The values of one source, or of all sources after merging, by section and key. librdkafka properties are in the section
/// [`PROPERTIES`], headers in [`HEADERS`], and the names of columns in [`COLUMNS`].
#[derive(Debug, Default)]
pub(in crate::config) struct Entries(BTreeMap<(&'static str, String), Entry>);

const PROPERTIES: &str = "kafka.properties";
const HEADERS: &str = "outbox.headers";
const COLUMNS: &str = "outbox.columns";

impl Entries {
    pub(in crate::config) fn get(&self, setting: &Setting) -> Option<&Entry> {
        self.0.get(&(setting.section, setting.key.to_owned()))
    }

    /// The librdkafka properties, by name.
    pub(in crate::config) fn properties(&self) -> BTreeMap<String, Entry> {
        self.of(PROPERTIES)
    }

    /// The headers of `[outbox.headers]`, by name.
    pub(in crate::config) fn headers(&self) -> BTreeMap<String, Entry> {
        self.of(HEADERS)
    }

    /// The names of `[outbox.columns]`, by the standard name.
    pub(in crate::config) fn columns(&self) -> BTreeMap<String, Entry> {
        self.of(COLUMNS)
    }

    fn of(&self, table: &str) -> BTreeMap<String, Entry> {
        let entries = self.0.iter().filter(|((section, _), _)| *section == table);
        entries.map(|((_, name), entry)| (name.clone(), entry.clone())).collect()
    }

    fn insert(&mut self, section: &'static str, key: &str, entry: Entry) {
        self.0.insert((section, key.to_owned()), entry);
    }

    /// Overrides these values with `other`. A secret also replaces its twin, such as a password file. A URL also replaces the
    /// password, which belongs to another role or server, and a password replaces the command that prints it, and vice versa.
    pub(in crate::config) fn override_with(&mut self, other: Entries) {
        let replaces = |(section, key): &(&'static str, String)| {
            let given = |key: &str| other.0.contains_key(&(*section, key.to_owned()));
            let url = *section == "postgres" && (given("url") || given("url_file"));
            let password = *section == "postgres" && (given("password") || given("password_file"));
            let command = *section == "postgres" && given("password_command");
            let is_command = key == "password_command";
            given(&setting::twin(key))
                || (key.starts_with("password")
                    && (url || (is_command && password) || (!is_command && command)))
        };
        self.0.retain(|name, _| !replaces(name));
        self.0.extend(other.0);
    }
}

/// Reads the file. Returns whether all of it could be read.
pub(in crate::config) fn from_file(path: &Path, findings: &mut Findings) -> (Entries, bool) {
    match std::fs::read(path).map(String::from_utf8) {
        Ok(Ok(text)) => from_text(path, &text, findings),
        failed => {
            let problem = failed.map_or_else(
                |error| unreadable(&error),
                |_| Problem::new("the file is not UTF-8 text", "save it as UTF-8"),
            );
            findings.error(&Place::File(path.to_path_buf()), problem);
            (Entries::default(), false)
        }
    }
}

/// Reads the content of the file. Returns whether all of it could be read.
pub(in crate::config) fn from_text(path: &Path, text: &str, findings: &mut Findings) -> (Entries, bool) {
    let mut entries = Entries::default();
    let lines = Lines::new(path, text);
    let (document, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        walk(document.get_ref(), &lines, &mut entries, findings);
        return (entries, true);
    }
    let mut malformed = Vec::new();
    for error in &errors {
        let place = lines.malformed(error.span().unwrap_or_default().start);
        malformed.extend(place.line());
        // The parser reports a string without quotes as an invalid float.
        let help = match error.message() {
            message if message.starts_with("invalid float") => "put text in quotes",
            message if message.starts_with("duplicate key") => "remove one of them, or join the sections",
            _ => "",
        };
        findings.error(&place, Problem::new(format!("malformed TOML: {}", error.message()), help));
    }
    // In a malformed file, only known settings on intact lines are checked. Other keys may be wrong guesses of the parser, and
    // could quote a secret.
    walk(document.get_ref(), &lines, &mut entries, &mut Findings::default());
    let whole = |entry: &Entry| entry.place.line().is_none_or(|line| !malformed.contains(&line));
    entries.0.retain(|(section, _), entry| ![PROPERTIES, HEADERS, COLUMNS].contains(section) && whole(entry));
    (entries, false)
}

fn unreadable(error: &std::io::Error) -> Problem {
    let help = match error.kind() {
        ErrorKind::NotFound => "pass the right file with --config, or write one with `outbox-relay init`",
        ErrorKind::PermissionDenied => "make it readable for the user that runs the relay",
        ErrorKind::IsADirectory => "pass a file with --config, not a directory",
        _ => "",
    };
    Problem::new(format!("cannot read the file: {error}"), help)
}

fn walk(document: &DeTable<'_>, lines: &Lines<'_>, entries: &mut Entries, findings: &mut Findings) {
    for (section, value) in document {
        let place = lines.place(section.span().start);
        let known = SECTIONS.iter().find(|(name, _)| *name == section.get_ref());
        match (known, value.get_ref()) {
            (Some((section, _)), DeValue::Table(table)) => {
                walk_section(section, table, lines, entries, findings);
            }
            (Some((section, _)), _) => {
                let message = format!("[{section}] must be a table");
                findings.error(&place, Problem::new(message, format!("write [{section}] on its own line")));
            }
            (None, value) => findings.error(&place, unknown_section(section.get_ref(), value)),
        }
    }
}

fn unknown_section(name: &str, value: &DeValue<'_>) -> Problem {
    if !value.is_table()
        && let Some(setting) = SETTINGS.iter().find(|setting| setting.key == name)
    {
        let message = format!("`{name}` is outside its section");
        return Problem::new(message, format!("move it below [{}]", setting.section));
    }
    let names = SECTIONS.iter().map(|(name, _)| *name);
    let help = match nearest(name, names.clone()) {
        Some(name) => format!("did you mean [{name}]?"),
        None => format!("the sections are {}", names.collect::<Vec<_>>().join(", ")),
    };
    Problem::new(format!("unknown section [{name}]"), help)
}

fn walk_section(
    section: &'static str,
    table: &DeTable<'_>,
    lines: &Lines<'_>,
    entries: &mut Entries,
    findings: &mut Findings,
) {
    for (key, value) in table {
        let place = lines.place(key.span().start);
        if let (Some(inner), DeValue::Table(table)) = (subsection(section, key.get_ref()), value.get_ref()) {
            walk_section(inner, table, lines, entries, findings);
            continue;
        }
        match (setting::find(section, key.get_ref()), value.get_ref()) {
            (None, _) => findings.error(&place, unknown_key(section, key.get_ref())),
            (Some(setting), DeValue::Table(table)) if setting.kind.is_table() => {
                let name = match setting.kind {
                    Kind::Headers => HEADERS,
                    Kind::Columns => COLUMNS,
                    _ => PROPERTIES,
                };
                walk_table(name, "", table, lines, entries);
            }
            (Some(setting), value) if setting.kind.is_table() => {
                findings.extend(&place, values::parse(setting, &raw(value)).err());
            }
            (Some(setting), value) => {
                entries.insert(section, setting.key, Entry { raw: raw(value), place });
            }
        }
    }
}

/// The subsection with this key: `[kafka.oauth]` is the table `oauth` of `[kafka]`.
fn subsection(section: &str, key: &str) -> Option<&'static str> {
    let is_inner =
        |name: &str| name.strip_prefix(section).and_then(|rest| rest.strip_prefix('.')) == Some(key);
    SECTIONS.iter().map(|(name, _)| *name).find(|name| is_inner(name))
}

fn unknown_key(section: &str, key: &str) -> Problem {
    let inner = SECTIONS.iter().filter_map(|(name, _)| name.strip_prefix(section)?.strip_prefix('.'));
    let keys = SETTINGS.iter().filter(|setting| setting.section == section).map(|setting| setting.key);
    let keys = keys.chain(inner);
    let elsewhere = SETTINGS.iter().find(|setting| setting.key == key);
    let help = match (elsewhere, nearest(key, keys.clone())) {
        (Some(setting), _) => format!("it belongs to [{}]", setting.section),
        (None, Some(near)) => format!("did you mean `{near}`?"),
        (None, None) if section == "kafka" && properties::is_known(key) => {
            "properties of librdkafka belong to [kafka.properties]".to_owned()
        }
        (None, None) => format!("[{section}] has {}", keys.collect::<Vec<_>>().join(", ")),
    };
    Problem::new(format!("unknown key `{key}` in [{section}]"), help)
}

/// Accepts both `"sasl.password" = ...` and `sasl.password = ...`, which is a nested table in TOML.
fn walk_table(
    section: &'static str,
    prefix: &str,
    table: &DeTable<'_>,
    lines: &Lines<'_>,
    entries: &mut Entries,
) {
    for (key, value) in table {
        let name = format!("{prefix}{}", key.get_ref());
        match value.get_ref() {
            DeValue::Table(table) => walk_table(section, &format!("{name}."), table, lines, entries),
            value => {
                let place = lines.place(key.span().start);
                entries.insert(section, &name, Entry { raw: raw(value), place });
            }
        }
    }
}

fn raw(value: &DeValue<'_>) -> Raw {
    match value {
        DeValue::String(text) => Raw::String(text.to_string()),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Raw::Integer(number),
            Err(_) => Raw::Other("an integer with more than 64 bits"),
        },
        DeValue::Boolean(flag) => Raw::Boolean(*flag),
        DeValue::Array(values) => {
            let word = |value: &DeValue<'_>| match value {
                DeValue::String(text) => Some(text.to_string()),
                _ => None,
            };
            let words: Option<Vec<_>> = values.iter().map(|value| word(value.get_ref())).collect();
            words.map_or(Raw::Other("a list"), Raw::List)
        }
        DeValue::Float(_) => Raw::Other("a fraction"),
        DeValue::Datetime(_) => Raw::Other("a date"),
        DeValue::Table(_) => Raw::Other("a table"),
    }
}

/// Reads the variables that override settings.
pub(in crate::config) fn from_environment(
    variables: impl IntoIterator<Item = (String, String)>,
    findings: &mut Findings,
) -> Entries {
    let mut entries = Entries::default();
    let named: Vec<(String, &Setting)> = SETTINGS
        .iter()
        .filter(|setting| !setting.kind.is_table())
        .map(|setting| (setting.variable(), setting))
        .collect();
    for (variable, value) in variables {
        let Some(name) = variable.strip_prefix(VARIABLE_PREFIX) else { continue };
        let entry = Entry { raw: Raw::Variable(value), place: Place::Variable(variable.clone()) };
        if let Some(property) = name.strip_prefix("KAFKA__PROPERTIES__") {
            entries.insert(PROPERTIES, &property_name(property), entry);
        } else if let Some(header) = name.strip_prefix("OUTBOX__HEADERS__") {
            entries.insert(HEADERS, &header.to_lowercase(), entry);
        } else if let Some(column) = name.strip_prefix("OUTBOX__COLUMNS__") {
            entries.insert(COLUMNS, &column.to_lowercase(), entry);
        } else if let Some((_, setting)) = named.iter().find(|(name, _)| *name == variable) {
            entries.insert(setting.section, setting.key, entry);
        } else {
            let help = match nearest(&variable, named.iter().map(|(name, _)| name.as_str())) {
                Some(name) => format!("did you mean {name}?"),
                None => format!("names are {VARIABLE_PREFIX}SECTION__KEY, in upper case"),
            };
            findings.error(&entry.place, Problem::new("no setting has this name", help));
        }
    }
    entries
}

/// `SASL_PASSWORD` is `sasl.password`, and `SASL_PASSWORD_FILE` is its twin `sasl.password_file`.
fn property_name(variable: &str) -> String {
    let dotted = |name: &str| name.to_lowercase().replace('_', ".");
    match variable.strip_suffix("_FILE").map(dotted) {
        Some(secret) if properties::is_secret(&secret) => format!("{secret}_file"),
        _ => dotted(variable),
    }
}
