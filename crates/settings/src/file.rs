//! The configuration file and the environment: finds the values, each with its place, without what may be secret.

use crate::findings::{Findings, Place, Problem};
use crate::reader::{Raw, parse};
use crate::setting::{self, Catalogue, Group, Kind, Setting, Table, VARIABLE_PREFIX};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use toml::de::{DeTable, DeValue};

#[derive(Clone, Debug)]
pub struct Entry {
    pub raw: Raw,
    pub place: Place,
}

/// The values of one source, or of all sources after merging, by section and key.
#[derive(Debug, Default)]
pub struct Entries(BTreeMap<(&'static str, String), Entry>);

impl Entries {
    pub fn get(&self, setting: &Setting) -> Option<&Entry> {
        self.0.get(&(setting.section, setting.key.to_owned()))
    }

    /// The values of a table whose keys the user chooses, by key.
    pub fn table(&self, section: &str) -> BTreeMap<String, Entry> {
        let entries = self.0.iter().filter(|((of, _), _)| *of == section);
        entries.map(|((_, name), entry)| (name.clone(), entry.clone())).collect()
    }

    pub fn contains(&self, section: &'static str, key: &str) -> bool {
        self.0.contains_key(&(section, key.to_owned()))
    }

    fn insert(&mut self, section: &'static str, key: &str, entry: Entry) {
        self.0.insert((section, key.to_owned()), entry);
    }

    /// Overrides these values with `other`. A secret also replaces its twin, such as a password file. `replaces` tells which
    /// further settings, by section and key, the given ones replace.
    pub fn override_with(
        &mut self,
        other: Entries,
        catalogue: &Catalogue,
        replaces: fn(&Entries, &'static str, &str) -> bool,
    ) {
        // In a table without known keys, nothing is a secret: `trace` and `trace_file` are two headers.
        let has_twins = |section: &str, key: &str| {
            let table = catalogue.tables().find(|(_, table)| table.section == section);
            table.is_none_or(|(_, table)| (table.is_known)(key.trim_end_matches("_file")))
        };
        let is_replaced = |(section, key): &(&'static str, String)| {
            has_twins(section, key) && other.contains(section, &setting::twin(key))
                || replaces(&other, section, key)
        };
        self.0.retain(|name, _| !is_replaced(name));
        self.0.extend(other.0);
    }
}

/// Reads the file. Returns whether all of it could be read.
pub fn from_file(catalogue: &Catalogue, path: &Path, findings: &mut Findings) -> (Entries, bool) {
    let problem = match std::fs::read(path).map(String::from_utf8) {
        Ok(Ok(text)) => return from_text(catalogue, path, &text, findings),
        Ok(Err(_)) => Problem::new("the file is not UTF-8 text", "save it as UTF-8"),
        Err(error) => unreadable(&error),
    };
    findings.error(&Place::File(path.to_path_buf()), problem);
    (Entries::default(), false)
}

/// Reads the content of the file. Returns whether all of it could be read.
pub fn from_text(catalogue: &Catalogue, path: &Path, text: &str, findings: &mut Findings) -> (Entries, bool) {
    let lines = Lines { catalogue, path, text };
    let (document, errors) = DeTable::parse_recoverable(text);
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
    let whole = errors.is_empty();
    let mut ignored = Findings::default();
    let findings = if whole { findings } else { &mut ignored };
    let mut walk = Walk { lines, entries: Entries::default(), findings };
    walk.document(document.get_ref());
    let mut entries = walk.entries;
    if !whole {
        // In a malformed file, only known settings on intact lines are checked. Other keys may be wrong guesses of the parser,
        // and could quote a secret.
        let intact = |entry: &Entry| entry.place.line().is_none_or(|line| !malformed.contains(&line));
        let is_free = |section: &str| catalogue.tables().any(|(_, table)| table.section == section);
        entries.0.retain(|(section, _), entry| !is_free(section) && intact(entry));
    }
    (entries, whole)
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

/// Collects the values of a document.
struct Walk<'a> {
    lines: Lines<'a>,
    entries: Entries,
    findings: &'a mut Findings,
}

impl Walk<'_> {
    fn document(&mut self, document: &DeTable<'_>) {
        for (section, value) in document {
            let catalogue = self.lines.catalogue;
            let problem = match (catalogue.section(section.get_ref()), value.get_ref()) {
                (Some(group), DeValue::Table(table)) => {
                    self.section(group.name, table);
                    continue;
                }
                (Some(group), _) => not_a_table(group),
                (None, value) => unknown_section(catalogue, section.get_ref(), value),
            };
            self.findings.error(&self.lines.place(section.span().start), problem);
        }
    }

    fn section(&mut self, section: &'static str, table: &DeTable<'_>) {
        let catalogue = self.lines.catalogue;
        for (key, value) in table {
            let place = self.lines.place(key.span().start);
            // `[kafka.oauth]` is the table `oauth` of `[kafka]`.
            let inner = catalogue.section(&format!("{section}.{}", key.get_ref()));
            if let (Some(group), DeValue::Table(table)) = (inner, value.get_ref()) {
                self.section(group.name, table);
                continue;
            }
            match (catalogue.find(section, key.get_ref()), value.get_ref()) {
                (None, _) => {
                    let unknown = || unknown_key(catalogue, section, key.get_ref());
                    self.findings.error(&place, inner.map_or_else(unknown, not_a_table));
                }
                (Some(Setting { kind: Kind::Table(kind), .. }), DeValue::Table(table)) => {
                    self.table(kind.section, "", table);
                }
                (Some(setting), value) if setting.kind.is_table() => {
                    if let Err(problem) = parse(setting, &raw(value)) {
                        self.findings.error(&place, problem);
                    }
                }
                (Some(setting), value) => {
                    self.entries.insert(section, setting.key, Entry { raw: raw(value), place });
                }
            }
        }
    }

    /// Accepts both `"sasl.password" = ...` and `sasl.password = ...`, which is a nested table in TOML.
    fn table(&mut self, section: &'static str, prefix: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let name = format!("{prefix}{}", key.get_ref());
            match value.get_ref() {
                DeValue::Table(table) => self.table(section, &format!("{name}."), table),
                value => {
                    let place = self.lines.place(key.span().start);
                    if self.entries.contains(section, &name) {
                        let message = format!("`{name}` is set twice in [{section}]");
                        let help = format!("remove one of them: \"{name}\" and {name} are the same key");
                        self.findings.error(&place, Problem::new(message, help));
                    }
                    self.entries.insert(section, &name, Entry { raw: raw(value), place });
                }
            }
        }
    }
}

fn not_a_table(group: &Group) -> Problem {
    let help = format!("write [{}] on its own line", group.name);
    Problem::new(format!("[{}] must be a table", group.name), help)
}

fn unknown_section(catalogue: &Catalogue, name: &str, value: &DeValue<'_>) -> Problem {
    if !value.is_table()
        && let Some(setting) = catalogue.settings().find(|setting| setting.key == name)
    {
        let message = format!("`{name}` is outside its section");
        return Problem::new(message, format!("move it below [{}]", setting.section));
    }
    let names = catalogue.sections.iter().map(|group| group.name);
    let help = match nearest(name, names.clone()) {
        Some(name) => format!("did you mean [{name}]?"),
        None => format!("the sections are {}", names.collect::<Vec<_>>().join(", ")),
    };
    Problem::new(format!("unknown section [{name}]"), help)
}

fn unknown_key(catalogue: &Catalogue, section: &str, key: &str) -> Problem {
    let inner = |group: &Group| group.name.strip_prefix(section)?.strip_prefix('.');
    let inner = catalogue.sections.iter().filter_map(inner);
    let keys = catalogue.settings().filter(|setting| setting.section == section).map(|setting| setting.key);
    let keys = keys.chain(inner);
    let elsewhere = catalogue.settings().find(|setting| setting.key == key);
    let mut tables = catalogue.tables().filter(|(setting, _)| setting.section == section);
    let of_a_table = tables.find(|(_, table)| (table.is_known)(key)).map(|(_, table)| table);
    let help = match (elsewhere, nearest(key, keys.clone()), of_a_table) {
        (Some(setting), ..) => format!("it belongs to [{}]", setting.section),
        (None, Some(near), _) => format!("did you mean `{near}`?"),
        (None, None, Some(table)) => format!("{} belong to [{}]", table.what, table.section),
        (None, None, None) => format!("[{section}] has {}", keys.collect::<Vec<_>>().join(", ")),
    };
    Problem::new(format!("unknown key `{key}` in [{section}]"), help)
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
            let words = values.iter().map(|value| value.get_ref().as_str().map(str::to_owned));
            words.collect::<Option<Vec<_>>>().map_or(Raw::Other("a list"), Raw::List)
        }
        DeValue::Float(_) => Raw::Other("a fraction"),
        DeValue::Datetime(_) => Raw::Other("a date"),
        DeValue::Table(_) => Raw::Other("a table"),
    }
}

pub fn from_environment(
    catalogue: &Catalogue,
    variables: impl IntoIterator<Item = (String, String)>,
    findings: &mut Findings,
) -> Entries {
    let mut entries = Entries::default();
    let named: Vec<(String, &Setting)> = catalogue
        .settings()
        .filter(|setting| !setting.kind.is_table())
        .map(|setting| (setting.variable(), setting))
        .collect();
    for (variable, value) in variables {
        if !variable.starts_with(VARIABLE_PREFIX) {
            continue;
        }
        let entry = Entry { raw: Raw::Variable(value), place: Place::Variable(variable.clone()) };
        let key_in = |(setting, table): (&Setting, &'static Table)| {
            let key = variable.strip_prefix(&setting.variable())?.strip_prefix("__")?;
            Some((table.section, (table.key_of_variable)(key)))
        };
        if let Some((section, key)) = catalogue.tables().find_map(key_in) {
            entries.insert(section, &key, entry);
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

/// The configuration file, by line.
struct Lines<'a> {
    catalogue: &'a Catalogue,
    path: &'a Path,
    text: &'a str,
}

impl Lines<'_> {
    /// The line of the key at this offset.
    fn place(&self, offset: usize) -> Place {
        self.at(offset, |key| key.chars().all(|c| c.is_ascii_alphanumeric() || "_-. ".contains(c)))
    }

    /// The line of a syntax error, where something that looks like a key may be part of a secret.
    fn malformed(&self, offset: usize) -> Place {
        let keys = || self.catalogue.settings().map(|setting| setting.key);
        self.at(offset, |key| nearest(key, keys()).is_some())
    }

    fn at(&self, offset: usize, may_show_key: impl Fn(&str) -> bool) -> Place {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        let index = before.iter().filter(|byte| **byte == b'\n').count();
        let line = self.text.lines().nth(index).unwrap_or("").trim();
        Place::Line { path: self.path.to_path_buf(), line: index + 1, text: self.show(line, may_show_key) }
    }

    /// The line with everything that may be secret removed. Neither a mistyped `pasword = "..."` nor a line within a secret may
    /// appear in a log.
    fn show(&self, line: &str, may_show_key: impl Fn(&str) -> bool) -> String {
        let is_header = |name: &str| name.chars().all(|c| c.is_ascii_lowercase() || c == '.' || c == '_');
        if line.is_empty() || line.strip_prefix('[').is_some_and(|rest| is_header(rest.trim_end_matches(']')))
        {
            return line.to_owned();
        }
        let end = line.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(line.len());
        let (key, value) = line.split_at(end);
        let bare = key.replace(['"', '\''], "");
        if self.is_harmless(&bare) && !value.trim_start_matches([' ', '=']).contains(['@', '=']) {
            return line.to_owned();
        }
        let sign = if value.contains('=') { " =" } else { "" };
        if may_show_key(&bare) { format!("{key}{sign} …") } else { "…".to_owned() }
    }

    /// Whether the value of this key may be printed.
    fn is_harmless(&self, key: &str) -> bool {
        let inner = |group: &Group| key.strip_prefix(group.name)?.strip_prefix('.');
        let key = self.catalogue.sections.iter().find_map(inner).unwrap_or(key);
        let mut settings = self.catalogue.settings().filter(|setting| setting.key == key).peekable();
        let may_show = |setting: &Setting| !setting.secret && !matches!(setting.kind, Kind::Command);
        let is_setting = settings.peek().is_some() && settings.all(may_show);
        let of_table = |(setting, table): (&Setting, &Table)| {
            let prefixed = key.strip_prefix(setting.key).and_then(|rest| rest.strip_prefix('.'));
            (table.is_harmless)(prefixed.unwrap_or(key))
        };
        is_setting || self.catalogue.tables().any(of_table)
    }
}

/// The name that is most similar to `text`, if the user probably meant it.
pub fn nearest<'a>(text: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let text = text.to_lowercase();
    let similarity = |name: &str| strsim::normalized_damerau_levenshtein(&text, &name.to_lowercase());
    let scored = names.into_iter().map(|name| (similarity(name), name));
    let (score, name) = scored.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    (score >= 0.6).then_some(name)
}
