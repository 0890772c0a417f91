//! `config.example.toml`, written from the catalogue.

use crate::config::catalogue::{CATALOGUE, Fallback, Kind, Setting};

/// A configuration file that shows every setting with its default and its meaning.
pub fn example() -> String {
    let mut text = String::from(
        "# Every setting of outbox-relay, with its default. Settings without `#` are required. A commented-out setting shows\n\
         # its default, or an example if it has no default.\n\
         #\n\
         # An environment variable overrides the file: OUTBOX_RELAY__RELAY__BATCH_SIZE sets [relay] batch_size.\n\
         # `outbox-relay check-config` reports every problem in the file.\n",
    );
    for group in CATALOGUE.sections {
        text.push('\n');
        for line in group.about.lines() {
            text.push_str(&format!("# {line}\n"));
        }
        text.push_str(&format!("[{}]\n", group.name));
        for setting in group.settings {
            text.push('\n');
            for line in setting.help.lines() {
                text.push_str(&format!("# {line}\n"));
            }
            text.push_str(&assignment(setting));
        }
    }
    text
}

fn assignment(setting: &Setting) -> String {
    if let Kind::Table(table) = setting.kind {
        return format!("[{}]\n{}", table.section, table.lines);
    }
    let key = setting.key;
    match setting.fallback {
        Fallback::Required(value) => format!("{key} = {}\n", toml(setting.kind, value)),
        Fallback::Default(value) | Fallback::Unset(value) => {
            format!("#{key} = {}\n", toml(setting.kind, value))
        }
    }
}

/// A value as it is written in TOML; the catalogue has it as the environment would give it.
fn toml(kind: Kind, value: &str) -> String {
    match kind {
        Kind::Flag | Kind::Count(..) | Kind::Command => value.to_owned(),
        _ => format!("{value:?}"),
    }
}
