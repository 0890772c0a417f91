//! Renders `docs/configuration.md` from the catalogue.

use std::time::Duration;

use crate::config::ByteSize;
use crate::config::catalogue::{Fallback, Kind, SECTIONS, SETTINGS, Setting};
use crate::config::properties::{FILES, PROTECTED, SECRETS};

const HEAD: &str = "\
# Configuration

<!-- Written from src/config/catalogue.rs by `make docs` -->

`outbox-relay` reads one TOML file, passed with `--config`. [config.example.toml](../config.example.toml) is an example with every setting
and its default. `outbox-relay check-config` reports all problems of a file with their line numbers. An unknown key is an error.

- **Environment variables** override the file: `OUTBOX_RELAY__RELAY__BATCH_SIZE` sets `[relay] batch_size`. Without a file, the
  environment must provide all required settings.
- **Durations** are written as `\"50ms\"`, `\"45s\"`, `\"1h\"` or `\"1d\"`. **Sizes** are written as `\"64KiB\"`, `\"8MiB\"` or a number of bytes.
- **Files** with a relative name are looked up in `$CREDENTIALS_DIRECTORY` (systemd's `LoadCredential=`), then in the directory of the
  configuration file.

## Secrets

Settings marked as *secret* never appear in logs, errors, metrics, `status` or process arguments. For each secret setting, there is another
one whose name ends in `_file` and that names a file with the secret. A trailing line break is ignored. The file is reloaded for each
connection, so you can change a password without a restart. Set only one of the two. If both are set in different places, the environment
overrides the file.

Prefer the file. Environment variables are visible to root and the service user in `/proc/PID/environ`, and are inherited by child
processes.
";

/// The page.
pub(super) fn manual() -> String {
    let mut page = HEAD.to_owned();
    for (section, help) in SECTIONS {
        page +=
            &format!("\n## [{section}]\n\n{help}\n\n| Setting | Default | Value | |\n|---|---|---|---|\n");
        for setting in SETTINGS.iter().filter(|setting| setting.section == *section) {
            page += &row(setting);
        }
        if *section == "kafka" {
            page += &properties();
        }
    }
    page
}

fn row(setting: &Setting) -> String {
    let default = match setting.fallback {
        Fallback::Default("") => "none".to_owned(),
        Fallback::Default(value) => format!("`{value}`"),
        Fallback::Required(example) => format!("**required**, for example `{example}`"),
        Fallback::Unset(_) => "none".to_owned(),
    };
    let secret = if setting.secret { "*Secret.* " } else { "" };
    let help = setting.help.replace('\n', " ").replace('|', "\\|");
    format!("| `{}` | {default} | {} | {secret}{help} |\n", setting.key, value(setting.kind))
}

fn value(kind: Kind) -> String {
    let words = |words: &[&str]| words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
    let span = |span: Duration| humantime::format_duration(span).to_string();
    match kind {
        Kind::Text => "text".to_owned(),
        Kind::File => "file name".to_owned(),
        Kind::Flag => "`true` or `false`".to_owned(),
        Kind::Choice(choices) => format!("one of {}", words(choices)),
        Kind::Words(choices) => format!("list of {}", words(choices)),
        Kind::Count(min, max) => format!("number, {min} to {max}"),
        Kind::Size(min, max) => format!("size, {} to {}", ByteSize::bytes(min), ByteSize::bytes(max)),
        Kind::Span(min, max) => format!("duration, {} to {}", span(min), span(max)),
        Kind::Properties => "table".to_owned(),
    }
}

fn properties() -> String {
    let mut text = String::from(
        "\n### [kafka.properties]\n\n\
         Any librdkafka property for producers, such as `\"compression.type\" = \"zstd\"`. For the list, see its \
         [CONFIGURATION.md](https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md). In the \
         environment, `security.protocol` is `OUTBOX_RELAY__KAFKA__PROPERTIES__SECURITY_PROTOCOL`.\n\n\
         These properties are secret. Each can be read from a file, such as `\"sasl.password_file\"`: ",
    );
    let list = |names: &[&str]| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    text += &list(SECRETS);
    text += ".\n\nThese properties are file names, which are looked up as described above: ";
    text += &list(FILES);
    text += ".\n\nThese properties cannot be set:\n\n| Property | Reason |\n|---|---|\n";
    for (name, reason) in PROTECTED {
        text += &format!("| `{name}` | {reason} |\n");
    }
    text
}
