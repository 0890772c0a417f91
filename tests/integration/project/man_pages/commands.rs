//! Section 1: a page for each command, with the parts that the command line does not describe.

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::collections::BTreeMap;
use std::io::{self, Write};

use super::MANUAL;

/// clap_mangen puts this before each part that it renders, but a page needs it only once.
const PREAMBLE: &str = ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n";

const EXIT_STATUS: &[(&str, &str)] = &[
    ("0", "Success."),
    ("1", "The command failed, or a check found a problem."),
    ("2", "The command line is invalid."),
    ("69", "PostgreSQL or Kafka is unreachable. \"run\" without --once waits instead."),
    ("78", "The configuration, the privileges or the schema must be fixed first."),
];

const ENVIRONMENT: &[(&str, &str)] = &[
    (
        "OUTBOX_RELAY__SECTION__KEY",
        "Overrides one setting of the configuration file; see outbox-relay.toml(5).",
    ),
    ("OUTBOX_RELAY_CONFIG", "Configuration file, if --config is not given. If empty, no file is read."),
    ("CREDENTIALS_DIRECTORY", "Directory in which relative file names are looked up first. Set by systemd."),
    (
        "NOTIFY_SOCKET, JOURNAL_STREAM",
        "Set by systemd. The relay reports its state to the socket, and logs to the journal if stderr is connected to it.",
    ),
];

const FILES: &[(&str, &str)] = &[
    ("/etc/outbox-relay/config.toml", "The configuration of the service outbox-relay."),
    ("/etc/outbox-relay/NAME.toml", "The configuration of the service outbox-relay@NAME."),
    (
        "/etc/outbox-relay/postgres-url",
        "The URL of the database, which systemd passes to the service as a credential.",
    ),
    (
        "/etc/outbox-relay/postgres-password, /etc/outbox-relay/kafka-password",
        "Passwords, passed in the same way. For outbox-relay@NAME, the files are NAME.postgres-url and so on.",
    ),
];

/// The pages of a command line and of its commands, by file name.
pub fn pages(command: Command) -> BTreeMap<String, String> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut pages = BTreeMap::new();
    add(&command, &mut pages);
    pages
}

fn add(command: &Command, pages: &mut BTreeMap<String, String>) {
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    shown.for_each(|command| add(command, pages));
    let man = Man::new(command.clone()).manual(MANUAL).source(source());
    pages.insert(man.get_filename(), page(command, &man));
}

/// The source in the footer of each page.
pub fn source() -> String {
    format!("outbox-relay {}", env!("CARGO_PKG_VERSION"))
}

fn page(command: &Command, man: &Man) -> String {
    let mut page = PREAMBLE.to_owned();
    let mut add = |part: &str| page.push_str(&part.replace(PREAMBLE, ""));
    add(&with_empty_date(&render(|to| man.render_title(to))));
    add(&render(|to| man.render_name_section(to)));
    add(&render(|to| man.render_synopsis_section(to)));
    add(&render(|to| man.render_description_section(to)));
    let said = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let paragraphs: Vec<_> = said.split("\n\n").filter(|paragraph| !paragraph.is_empty()).collect();
    let begins =
        |paragraph: &&&str| ["Examples:", "Exit codes:"].iter().any(|word| paragraph.starts_with(word));
    for paragraph in paragraphs.iter().filter(|paragraph| !begins(paragraph)) {
        add(&format!(".PP\n{}", Roff::new().text([roman(*paragraph)]).to_roff()));
    }
    add(&render(|to| man.render_options_section(to)));
    if command.has_subcommands() {
        add(&render(|to| man.render_subcommands_section(to)));
    }
    for paragraph in paragraphs.iter().filter(begins) {
        add(&match paragraph.strip_prefix("Examples:\n") {
            Some(lines) => verbatim("EXAMPLES", lines),
            None => section("EXIT STATUS", paragraph.trim_start_matches("Exit codes: ")),
        });
    }
    let top = command.get_name() == MANUAL;
    if top {
        add(&list("EXIT STATUS", EXIT_STATUS));
        add(&list("ENVIRONMENT", ENVIRONMENT));
        add(&list("FILES", FILES));
    }
    let others = "outbox-relay.toml(5), systemctl(1), journalctl(1)";
    add(&section(
        "SEE ALSO",
        &if top { format!("outbox-bench(1), {others}") } else { format!("outbox-relay(1), {others}") },
    ));
    page
}

/// clap_mangen omits an empty date, so that the next field would become the date.
pub fn with_empty_date(title: &str) -> String {
    title.replacen("  ", " \"\" ", 1)
}

fn render(part: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> String {
    let mut bytes = Vec::new();
    part(&mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

/// A heading and a paragraph.
pub fn section(heading: &str, text: &str) -> String {
    Roff::new().control("SH", [heading]).text([roman(text)]).to_roff()
}

/// A heading and preformatted lines.
pub fn verbatim(heading: &str, lines: &str) -> String {
    let mut roff = Roff::new();
    roff.control("SH", [heading]).control("nf", []).text([roman(lines)]).control("fi", []);
    roff.to_roff()
}

/// A heading, and terms with their meanings.
pub fn list(heading: &str, terms: &[(&str, &str)]) -> String {
    let mut roff = Roff::new();
    roff.control("SH", [heading]);
    for (term, meaning) in terms {
        roff.control("TP", []).text([bold(*term)]).text([roman(*meaning)]);
    }
    roff.to_roff()
}
