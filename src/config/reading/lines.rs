//! The lines of the configuration file, without anything that may be secret.

use std::path::Path;

use crate::config::catalogue::{SECTIONS, SETTINGS};
use crate::config::findings::Place;
use crate::config::properties;
use crate::config::reading::nearest::nearest;

/// The configuration file, by line.
pub(in crate::config) struct Lines<'a> {
    path: &'a Path,
    text: &'a str,
}

impl<'a> Lines<'a> {
    pub(in crate::config) fn new(path: &'a Path, text: &'a str) -> Lines<'a> {
        Lines { path, text }
    }

    /// The line of the key at this offset.
    pub(in crate::config) fn place(&self, offset: usize) -> Place {
        self.at(offset, |key| key.chars().all(|c| c.is_ascii_alphanumeric() || "_-. ".contains(c)))
    }

    /// The line of a syntax error, where something that looks like a key may be part of a secret.
    pub(in crate::config) fn malformed(&self, offset: usize) -> Place {
        self.at(offset, |key| nearest(key, SETTINGS.iter().map(|setting| setting.key)).is_some())
    }

    fn at(&self, offset: usize, may_show_key: impl Fn(&str) -> bool) -> Place {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        let index = before.iter().filter(|byte| **byte == b'\n').count();
        let line = self.text.lines().nth(index).unwrap_or("").trim();
        Place::Line { path: self.path.to_path_buf(), line: index + 1, text: show(line, may_show_key) }
    }
}

/// The line with everything that may be secret removed. Neither a mistyped `pasword = "..."` nor a line within a secret may appear
/// in a log.
fn show(line: &str, may_show_key: impl Fn(&str) -> bool) -> String {
    let is_header = |name: &str| name.chars().all(|c| c.is_ascii_lowercase() || c == '.' || c == '_');
    if line.is_empty() || line.strip_prefix('[').is_some_and(|rest| is_header(rest.trim_end_matches(']'))) {
        return line.to_owned();
    }
    let end = line.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(line.len());
    let (key, value) = line.split_at(end);
    let bare = key.replace(['"', '\''], "");
    if is_harmless(&bare) && !value.trim_start_matches([' ', '=']).contains(['@', '=']) {
        return line.to_owned();
    }
    let sign = if value.contains('=') { " =" } else { "" };
    if may_show_key(&bare) { format!("{key}{sign} …") } else { "…".to_owned() }
}

/// Whether the value of this key may be printed.
fn is_harmless(key: &str) -> bool {
    let section = SECTIONS.iter().find_map(|(name, _)| key.strip_prefix(name)?.strip_prefix('.'));
    let key = section.unwrap_or(key);
    let property = key.strip_prefix("properties.").unwrap_or(key);
    let mut settings = SETTINGS.iter().filter(|setting| setting.key == key).peekable();
    let is_setting = settings.peek().is_some() && settings.all(|setting| !setting.secret);
    let names_a_file = property.strip_suffix("_file").is_some_and(properties::is_secret);
    is_setting || names_a_file || (properties::is_known(property) && !properties::is_secret(property))
}
