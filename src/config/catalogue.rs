//! The one table of settings. Parsing, environment names, `config.example.toml` and the manual derive from it.

use std::time::Duration;

/// What a value must look like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Any text.
    Text,
    /// The name of a file.
    File,
    /// `true` or `false`.
    Flag,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Any of these words, in a list.
    Words(&'static [&'static str]),
    /// A whole number in this range.
    Count(u64, u64),
    /// A size in bytes in this range, such as `"8MiB"`.
    Size(u64, u64),
    /// A duration in this range, such as `"50ms"`.
    Span(Duration, Duration),
    /// A table of librdkafka properties.
    Properties,
}

/// What holds when a setting is not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// This value, as the environment would give it.
    Default(&'static str),
    /// Nothing; the text is an example.
    Unset(&'static str),
    /// The setting, or its `_file` twin, must be given; the text is an example.
    Required(&'static str),
}

/// One setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// The table of the file that it stands in.
    pub section: &'static str,
    /// Its key there.
    pub key: &'static str,
    /// What its value must look like.
    pub kind: Kind,
    /// What holds when it is not given.
    pub fallback: Fallback,
    /// Whether its value must never be shown. A secret has a twin whose key ends in `_file`.
    pub secret: bool,
    /// What it means, in a line or two.
    pub help: &'static str,
}

/// Begins the name of each environment variable that overrides a setting.
pub const VARIABLE_PREFIX: &str = "OUTBOX_RELAY__";

impl Setting {
    /// The environment variable that overrides this setting.
    pub fn variable(&self) -> String {
        let section = self.section.replace('.', "__");
        format!("{VARIABLE_PREFIX}{section}__{}", self.key).to_uppercase()
    }

    /// The other way to give the same secret: `password` and `password_file` are twins.
    pub fn twin(&self) -> Option<&'static Setting> {
        let is_twin = |other: &&Setting| {
            let (secret, file) = if self.secret { (self, *other) } else { (*other, self) };
            secret.secret
                && file.key.strip_suffix("_file") == Some(secret.key)
                && file.section == secret.section
        };
        SETTINGS.iter().find(is_twin)
    }
}

/// The setting with this name.
pub fn find(section: &str, key: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.section == section && setting.key == key)
}

/// The sections, in the order of the file, each with what it is about.
pub const SECTIONS: &[(&str, &str)] = &[
    ("postgres", "The database that holds the outbox."),
    ("kafka", "The cluster that events go to."),
    (
        "kafka.oauth",
        "A login with tokens (SASL OAUTHBEARER, client credentials), in place of a user and a password; it wants\n\
         \"security.protocol\" = \"sasl_ssl\" in [kafka.properties]. In use when token_url is set.",
    ),
    ("outbox", "The table, and how its rows become records."),
    ("relay", "How much is moved at once, and how long things may take."),
    ("reaper", "The deletion of rows that were sent long ago."),
    ("admin", "Metrics and health over HTTP: /metrics, /livez, /readyz."),
    ("log", "What is logged, and how."),
];

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

const fn public(
    (section, key): (&'static str, &'static str),
    kind: Kind,
    fallback: Fallback,
    help: &'static str,
) -> Setting {
    Setting { section, key, kind, fallback, secret: false, help }
}

const fn secret(
    (section, key): (&'static str, &'static str),
    kind: Kind,
    fallback: Fallback,
    help: &'static str,
) -> Setting {
    Setting { section, key, kind, fallback, secret: true, help }
}

use Fallback::{Default, Required, Unset};
use Kind::{Choice, Count, File, Flag, Properties, Size, Span, Text, Words};

/// All settings, in the order of the file.
pub const SETTINGS: &[Setting] = &[
    secret(
        ("postgres", "url"),
        Text,
        Required("postgres://outbox_relay@localhost/app"),
        "Where the database is, as for psql: a URL, or words like \"host=db user=outbox_relay dbname=app\".",
    ),
    public(
        ("postgres", "url_file"),
        File,
        Unset("postgres-url"),
        "A file that holds the url. Relative names, here and below, are looked up in $CREDENTIALS_DIRECTORY, then in\n\
         the folder of this file. It is read again at each connect.",
    ),
    secret(
        ("postgres", "password"),
        Text,
        Unset("secret"),
        "The password, if the url has none; it comes before the one of the url. With another url in the environment, the\n\
         file's password is not used: give that url its own.",
    ),
    public(
        ("postgres", "password_file"),
        File,
        Unset("postgres-password"),
        "A file that holds the password. It is read again at each connect.",
    ),
    public(
        ("postgres", "sslmode"),
        Choice(&["disable", "prefer", "require", "verify-ca", "verify-full"]),
        Unset("verify-full"),
        "How far TLS is required and verified; comes before the sslmode of the url, as do the next three.\n\
         When neither says it: verify-full, but prefer when every host is loopback or a socket.",
    ),
    public(
        ("postgres", "sslrootcert"),
        Text,
        Unset("ca.pem"),
        "The file with the certificate authorities to trust. When not given, or \"system\": those of the system.",
    ),
    public(
        ("postgres", "sslcert"),
        File,
        Unset("client.pem"),
        "The client's certificate, if the server asks for one.",
    ),
    public(("postgres", "sslkey"), File, Unset("client.key"), "The key of the client's certificate."),
    public(
        ("postgres", "connect_timeout"),
        Span(ms(100), secs(600)),
        Default("10s"),
        "How long one attempt to connect to one address may take.",
    ),
    public(
        ("postgres", "prepared_statements"),
        Flag,
        Default("true"),
        "Set to false behind a pooler in transaction mode that does not know prepared statements\n\
         (PgBouncer before 1.21, or with max_prepared_statements = 0).",
    ),
    public(
        ("postgres", "application_name"),
        Text,
        Default("outbox-relay"),
        "The name shown in pg_stat_activity.",
    ),
    public(
        ("kafka", "bootstrap_servers"),
        Text,
        Required("localhost:9092"),
        "The brokers to begin with, as host:port, separated by commas.",
    ),
    public(
        ("kafka", "properties"),
        Properties,
        Unset(""),
        "Any property of librdkafka, by its own name, but for those that the guarantees rest on. Secrets have twins\n\
         too: \"sasl.password_file\". By environment: OUTBOX_RELAY__KAFKA__PROPERTIES__SASL_PASSWORD.",
    ),
    public(
        ("kafka.oauth", "token_url"),
        Text,
        Unset("https://login.example.com/oauth2/token"),
        "The token endpoint of the identity provider. Without TLS only on this host itself.",
    ),
    public(
        ("kafka.oauth", "client_id"),
        Text,
        Unset("outbox-relay"),
        "Who the relay is at the identity provider.",
    ),
    secret(("kafka.oauth", "client_secret"), Text, Unset("secret"), "The secret of this client."),
    public(
        ("kafka.oauth", "client_secret_file"),
        File,
        Unset("kafka-client-secret"),
        "A file that holds the client_secret. It is read again for each token.",
    ),
    public(
        ("kafka.oauth", "client_authentication"),
        Choice(&["basic", "post"]),
        Default("basic"),
        "How id and secret are sent: in the header Authorization, as every provider must allow, or in the body.",
    ),
    public(("kafka.oauth", "scope"), Text, Unset("kafka"), "The scopes to ask for, separated by spaces."),
    public(
        ("kafka.oauth", "audience"),
        Text,
        Unset("kafka"),
        "The audience to ask for, where the provider wants one.",
    ),
    public(
        ("kafka.oauth", "ca_location"),
        File,
        Unset("oauth-ca.pem"),
        "The certificate authorities that may sign for the token endpoint. When not given: those of the system.",
    ),
    public(
        ("outbox", "table"),
        Text,
        Default("public.outbox"),
        "The outbox table, with its schema. Its other tables are named after it.",
    ),
    public(
        ("outbox", "topic"),
        Text,
        Default("events.{aggregate_type}"),
        "The topic of an event, from the columns of its row.",
    ),
    public(
        ("outbox", "on_sent"),
        Choice(&["mark", "delete"]),
        Default("mark"),
        "What happens to a row that Kafka has: mark sets sent_at, and the reaper deletes it later; delete is faster\n\
         and leaves no history.",
    ),
    public(
        ("outbox", "on_rejected"),
        Choice(&["dead-letter", "block-key"]),
        Default("dead-letter"),
        "What happens to a row that Kafka definitely rejects, alone: dead-letter moves it to the dead letters, and the\n\
         rows behind it go on; block-key keeps it, and the rows of its key wait until you decide.",
    ),
    public(
        ("outbox", "rejections_before_hold"),
        Count(1, 1_000_000),
        Default("10"),
        "After so many rejected rows of one topic, with no success between them, the next one holds the topic instead:\n\
         a broken limit or validator must not empty the outbox into the dead letters.",
    ),
    public(
        ("outbox", "optional_headers"),
        Words(&["aggregate_type", "created_at"]),
        Default(""),
        "Headers to add to event_id, event_type and the row's own: \"aggregate_type\", \"created_at\".",
    ),
    public(
        ("relay", "batch_size"),
        Count(1, 100_000),
        Default("10000"),
        "The most rows that one worker claims at once.",
    ),
    public(
        ("relay", "batch_bytes"),
        Size(64 << 10, 1 << 30),
        Default("8MiB"),
        "The most bytes that one worker claims at once; a single larger row still goes. Memory is about\n\
         workers times this.",
    ),
    public(
        ("relay", "poll_interval"),
        Span(ms(1), secs(HOUR)),
        Default("50ms"),
        "The longest pause between two looks at an empty outbox; after work the pauses begin at 1ms.",
    ),
    public(
        ("relay", "workers"),
        Count(1, 64),
        Default("2"),
        "How many batches are under way at once, each with a Postgres connection and a Kafka producer.",
    ),
    public(
        ("relay", "publish_timeout"),
        Span(secs(1), secs(600)),
        Default("45s"),
        "How long Kafka may take to acknowledge a batch before what is left of it is released and sent anew.\n\
         Keep it above the 30s that a cluster may take to recover by itself. Vacuum can be held back this long.",
    ),
    public(
        ("relay", "takeover_timeout"),
        Span(secs(1), secs(600)),
        Default("10s"),
        "How long a relay that froze or vanished keeps its rows before others take over.",
    ),
    public(
        ("relay", "shutdown_timeout"),
        Span(secs(1), secs(HOUR)),
        Default("50s"),
        "How long SIGTERM waits for what is in flight. Keep it above publish_timeout, and TimeoutStopSec of the\n\
         service above it.",
    ),
    public(("reaper", "enabled"), Flag, Default("true"), "Whether this relay deletes old rows."),
    public(
        ("reaper", "retention"),
        Span(secs(1), secs(3660 * DAY)),
        Default("1d"),
        "How long a row is kept after it was sent.",
    ),
    public(
        ("reaper", "interval"),
        Span(secs(1), secs(DAY)),
        Default("1m"),
        "How often old rows are looked for.",
    ),
    public(
        ("reaper", "batch_size"),
        Count(1, 100_000),
        Default("5000"),
        "The most rows that are deleted in one transaction.",
    ),
    public(
        ("reaper", "inbox_retention"),
        Span(secs(1), secs(3660 * DAY)),
        Default("30d"),
        "How long the module inbox keeps which events were processed, where it was made. Keep it above the retention\n\
         of the topics plus the longest replay.",
    ),
    public(
        ("reaper", "idempotency_retention"),
        Span(secs(1), secs(3660 * DAY)),
        Default("1d"),
        "How long the module idempotency keeps finished requests, where it was made. Unfinished ones that are older are\n\
         reported, and kept.",
    ),
    public(
        ("admin", "listen"),
        Text,
        Default("127.0.0.1:10187"),
        "The address and port to listen on; \"off\" opens no port.",
    ),
    public(
        ("log", "level"),
        Text,
        Default("info"),
        "off, error, warn, info, debug or trace, for all or for parts: \"info,outbox_relay::kafka=debug\". SIGHUP changes\n\
         it in a running relay, as it does most limits and intervals; docs/operating.md has the list.",
    ),
    public(
        ("log", "format"),
        Choice(&["auto", "text", "json", "journald"]),
        Default("auto"),
        "auto means journald under systemd, else text.",
    ),
];
