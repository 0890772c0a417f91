//! The connections of relays, by where they come from.

use super::{AtWork, Relays};
use settings::text::seconds;
use std::collections::BTreeMap;

/// The connections with the same name from the same address.
pub(crate) struct Place<'a> {
    pub(crate) name: &'a str,
    pub(crate) address: &'a str,
    connections: Vec<&'a AtWork>,
}

impl Relays {
    /// By name and address.
    pub(crate) fn places(&self) -> Vec<Place<'_>> {
        let mut places: BTreeMap<(&str, &str), Vec<&AtWork>> = BTreeMap::new();
        for connection in &self.at_work {
            let address = connection.address.as_deref().unwrap_or("socket");
            places.entry((&connection.application_name, address)).or_default().push(connection);
        }
        let place = |((name, address), connections)| Place { name, address, connections };
        places.into_iter().map(place).collect()
    }
}

impl Place<'_> {
    /// Counts the connections by activity with the longest duration: `2 publishing (for 45ms), 5 idle`.
    pub(crate) fn activities(&self) -> String {
        let mut doing: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
        for connection in &self.connections {
            let (count, longest) = doing.entry(connection.doing).or_default();
            *count += 1;
            *longest = longest.max(connection.doing_for_seconds.unwrap_or_default());
        }
        let part = |(doing, (count, longest)): (&str, (usize, f64))| match doing {
            "idle" => format!("{count} idle"),
            "hidden" => format!("{count} unknown (requires pg_read_all_stats)"),
            _ => format!("{count} {} (for {})", doing.replace('-', " "), seconds(longest)),
        };
        let mut parts: Vec<String> = doing.into_iter().map(part).collect();
        parts.sort_by_key(|part| part.ends_with("idle"));
        parts.join(", ")
    }
}
