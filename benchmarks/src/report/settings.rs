//! The table of machines, versions and settings. Parts that were measured with the same ones share a column.

use super::table::cell;
use crate::parts::Part;
use crate::results::{Results, Setting};

/// A setting, and the names of the parts that were measured with it.
type Column<'a> = (&'a Setting, Vec<&'static str>);

pub fn table(results: &Results) -> String {
    let columns = columns(results);
    let heads: Vec<String> = columns.iter().map(|(_, parts)| parts.join(", ")).collect();
    let mut text = format!("\n| | {} |\n|---|{}\n", heads.join(" | "), "---|".repeat(columns.len()));
    for name in names(&columns) {
        let values: Vec<String> = columns.iter().map(|(setting, _)| cell(value(setting, name))).collect();
        text += &format!("| {} | {} |\n", cell(name), values.join(" | "));
    }
    text
}

fn columns(results: &Results) -> Vec<Column<'_>> {
    let mut columns: Vec<Column<'_>> = Vec::new();
    for part in Part::chosen(&[]) {
        let Some(outcome) = results.parts.get(part.name()) else { continue };
        match columns.iter_mut().find(|(setting, _)| **setting == outcome.setting) {
            Some((_, parts)) => parts.push(part.name()),
            None => columns.push((&outcome.setting, vec![part.name()])),
        }
    }
    columns
}

/// The names of all values, in the order in which they first appear.
fn names<'a>(columns: &[Column<'a>]) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in columns.iter().flat_map(|(setting, _)| setting.iter()) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names
}

fn value<'a>(setting: &'a Setting, name: &str) -> &'a str {
    setting.iter().find(|(of, _)| of == name).map_or("", |(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Outcome;

    #[test]
    fn parts_with_the_same_setting_share_a_column() {
        let mut results = Results::default();
        for (part, cpu) in [("drain", "fast"), ("debezium", "fast"), ("steady", "slow")] {
            let setting = vec![("CPU".to_owned(), cpu.to_owned())];
            results.parts.insert(part.to_owned(), Outcome { setting, ..Outcome::default() });
        }
        assert_eq!(
            table(&results),
            "\n| | debezium, drain | steady |\n|---|---|---|\n| CPU | fast | slow |\n"
        );
    }
}
