//! Writes `docs/configuration.md` from the catalogue.

use std::time::Duration;

use crate::config::ByteSize;
use crate::config::catalogue::{CATALOGUE, Fallback, Group, Kind, Setting};
use kafka::options::{FILES, SECRETS, protected};

const HEAD: &str = "\
# Configuration

<!-- Written from src/config/catalogue.rs by `make docs` -->

`outbox-relay` reads one [TOML file](commands.md). Only `[postgres] url` (or `url_file`) and `[kafka] \
bootstrap_servers` are required.
[config.example.toml](../config.example.toml) shows every setting with its default. An unknown key is an error. \
`outbox-relay check-config` reports every problem in the file, with its line number. [Reload](operating.md#reload) \
lists the settings that you can change without a
restart.

- **Environment variables** override the file: `OUTBOX_RELAY__RELAY__BATCH_SIZE` sets `[relay] batch_size`. Without a file, the environment
  must provide all required settings.
- **Durations** are written as `\"50ms\"`, `\"45s\"`, `\"1h\"` or `\"1d\"`. **Sizes** are written as `\"64KiB\"`, `\"8MiB\"` or a number of bytes.
- **Relative file names** are looked up in `$CREDENTIALS_DIRECTORY` (systemd's `LoadCredential=`), then in the \
directory of the
  configuration file. If `$CREDENTIALS_DIRECTORY` is not set or does not exist, the file `NAME.postgres-url` precedes `postgres-url`
  for the configuration `NAME.toml`, except for `config.toml`. The same applies to every other file name without a directory.
- **Secrets** can be in separate files. See [Secrets](#secrets).
";

const SECRETS_SECTION: &str = "
## Secrets

Settings marked as *secret* never appear in logs, errors, metrics, `status` or process arguments. Each of them has a second setting whose
name ends in `_file`. It names a file that contains the secret. A trailing line break in the file is ignored. The \
relay reads the file again for each connection or token, so you can change a secret without a restart. Set only one \
of the two settings. If one is set in the environment and the other in the configuration file, the environment \
takes precedence.

Prefer a `_file` setting to a secret in an environment variable. Environment variables are visible to root and to \
the service user in `/proc/PID/environ`, and child processes inherit them.
";

const PROTECTED_SECTION: &str = "
## Protected librdkafka properties

The guarantees depend on these properties, or another setting replaces them. `[kafka.properties]` does not accept them.

| Property | Reason |
|---|---|
";

/// The page: first the settings, last the properties that are refused.
pub(super) fn manual() -> String {
    let mut page = HEAD.to_owned();
    for Group { name: section, about, settings } in CATALOGUE.sections {
        page += &format!(
            "\n## [{section}]\n\n{about}\n\n| Setting | Default | Value | Meaning |\n|---|---|---|---|\n"
        );
        for setting in *settings {
            page += &row(setting);
        }
        if *section == "kafka" {
            page += &properties();
        }
    }
    page += SECRETS_SECTION;
    page += PROTECTED_SECTION;
    for (names, reason) in protected() {
        page += &format!("| {} | {reason} |\n", list(&names));
    }
    page
}

fn row(setting: &Setting) -> String {
    let default = match setting.fallback {
        Fallback::Default("") => "none".to_owned(),
        Fallback::Default(value) => format!("`{value}`"),
        Fallback::Required(example) => format!("**required**, such as `{example}`"),
        Fallback::Unset(_) => "none".to_owned(),
    };
    let secret = if setting.secret { "*Secret.* " } else { "" };
    let help = setting.help.replace('\n', " ").replace('|', "\\|");
    format!("| `{}` | {default} | {} | {secret}{help} |\n", setting.key, value(setting.kind))
}

fn value(kind: Kind) -> String {
    match kind {
        Kind::Text => "text".to_owned(),
        Kind::File => "file name".to_owned(),
        Kind::Flag => "`true` or `false`".to_owned(),
        Kind::Choice(choices) => format!("one of {}", list(choices)),
        Kind::Count(min, max) => format!("number, {min} to {max}"),
        Kind::Size(min, max) => format!("size, {} to {}", ByteSize::bytes(min), ByteSize::bytes(max)),
        Kind::Span(min, max) => format!("duration, {} to {}", span(min), span(max)),
        Kind::Command => "array of strings".to_owned(),
        Kind::Table(_) => "table".to_owned(),
    }
}

/// Whole days as days: humantime writes ten of them as `10days`, and 3660 of them as `10years 7days 12h`.
fn span(span: Duration) -> String {
    const DAY: u64 = 24 * 60 * 60;
    match span.as_secs() {
        secs if secs > 0 && secs.is_multiple_of(DAY) => format!("{}d", secs / DAY),
        _ => humantime::format_duration(span).to_string(),
    }
}

fn list(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn properties() -> String {
    let settable = |name: &&str| protected().all(|(names, _)| !names.contains(name));
    let secrets: Vec<&str> = SECRETS.iter().copied().filter(settable).collect();
    format!(
        "\n### [kafka.properties]\n\n\
         This table accepts any producer property of librdkafka, by its own name, such as `\"compression.type\" = \"zstd\"`. \
         librdkafka's [CONFIGURATION.md](https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md) \
         lists the properties. In the environment,\n`security.protocol` is \
         `OUTBOX_RELAY__KAFKA__PROPERTIES__SECURITY_PROTOCOL`.\n\n\
         - **Secrets**, each of which can be read from a file whose name is in a setting with the suffix `_file`, such as `\"sasl.password_file\"`: {}.\n\
         - **File names**, which are looked up as described above: {}.\n\
         - **Not accepted**: the [protected properties](#protected-librdkafka-properties).\n",
        list(&secrets),
        list(FILES)
    )
}
