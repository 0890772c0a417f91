//! The lines of the configuration file, without anything that may be secret.

use std::path::Path;

use crate::findings::Place;
use crate::nearest::nearest;
use crate::setting::{Catalogue, Group, Setting, Table};

/// The configuration file, by line.
pub(crate) struct Lines<'a> {
    pub(crate) catalogue: &'a Catalogue,
    path: &'a Path,
    text: &'a str,
}

impl<'a> Lines<'a> {
    pub(crate) fn new(catalogue: &'a Catalogue, path: &'a Path, text: &'a str) -> Lines<'a> {
        Lines { catalogue, path, text }
    }

    /// The line of the key at this offset.
    pub(crate) fn place(&self, offset: usize) -> Place {
        self.at(offset, |key| key.chars().all(|c| c.is_ascii_alphanumeric() || "_-. ".contains(c)))
    }

    /// The line of a syntax error, where something that looks like a key may be part of a secret.
    pub(crate) fn malformed(&self, offset: usize) -> Place {
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
        let is_setting = settings.peek().is_some() && settings.all(|setting| !setting.secret);
        let of_table = |(setting, table): (&Setting, &Table)| {
            let prefixed = key.strip_prefix(setting.key).and_then(|rest| rest.strip_prefix('.'));
            (table.is_harmless)(prefixed.unwrap_or(key))
        };
        is_setting || self.catalogue.tables().any(of_table)
    }
}
