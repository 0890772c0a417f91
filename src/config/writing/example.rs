//! `config.example.toml`, written from the catalogue.

use crate::config::catalogue::{Fallback, Kind, SECTIONS, SETTINGS, Setting};

/// A configuration file that shows every setting with its default and its meaning.
pub fn example() -> String {
    let mut text = String::from(
        "# Every setting of outbox-relay, with its default. Settings without `#` are required. A commented-out setting shows\n\
         # its default, or an example if it has no default.\n\
         #\n\
         # An environment variable overrides the file: OUTBOX_RELAY__RELAY__BATCH_SIZE sets [relay] batch_size.\n\
         # `outbox-relay check-config` reports every problem in the file.\n",
    );
    for (section, help) in SECTIONS {
        text.push('\n');
        for line in help.lines() {
            text.push_str(&format!("# {line}\n"));
        }
        text.push_str(&format!("[{section}]\n"));
        for setting in SETTINGS.iter().filter(|setting| setting.section == *section) {
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
    match setting.kind {
        Kind::Properties => return PROPERTIES.to_owned(),
        Kind::Headers => return HEADERS.to_owned(),
        Kind::Columns => return COLUMNS.to_owned(),
        _ => {}
    }
    let key = setting.key;
    match setting.fallback {
        Fallback::Required(value) => format!("{key} = {}\n", toml(setting.kind, value)),
        Fallback::Default(value) | Fallback::Unset(value) => {
            format!("#{key} = {}\n", toml(setting.kind, value))
        }
    }
}

const PROPERTIES: &str = "\
[kafka.properties]
#\"compression.type\" = \"lz4\"
#\"security.protocol\" = \"sasl_ssl\"
#\"ssl.ca.location\" = \"kafka-ca.pem\"
#\"sasl.mechanism\" = \"SCRAM-SHA-512\"
#\"sasl.username\" = \"outbox-relay\"
#\"sasl.password_file\" = \"kafka-password\"
";

const HEADERS: &str = "\
[outbox.headers]
#event_id = \"{event_id}\"
#event_type = \"{event_type}\"
";

const COLUMNS: &str = "\
[outbox.columns]
#aggregate_id = \"ref\"
#sent_at = \"published_at\"
";

/// A value as it is written in TOML; the catalogue has it as the environment would give it.
fn toml(kind: Kind, value: &str) -> String {
    match kind {
        Kind::Flag | Kind::Count(..) | Kind::Command => value.to_owned(),
        _ => format!("{value:?}"),
    }
}
