//! The settings, in the order of the file. Each adapter declares its own; those of the daemon are here.
//!
//! To add a setting, add a row to its section and use the field. Parsing, environment variables, `config.example.toml`, the
//! manual and the comparison at a reload derive from it. The compiler and the tests name what does not. If the effect
//! is [`Effect::Now`], `apply` in `supervisor.rs` must apply the new value to a running relay.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use kafka::headers::{Envelope, HEADERS, HeaderTemplate};
use kafka::options::{Aws, Kafka, OAuth};
use pg_outbox::topic::TopicTemplate;
use postgres::columns::COLUMNS;
use postgres::options::{OnSent, Postgres};
use postgres::table::TableName;
use relay::OnRejected;
use relay::topic::TopicAllow;
use settings::reader::ByteSize;
use settings::section;
pub use settings::setting::{Catalogue, Effect, Fallback, Group, Kind, Setting, VARIABLE_PREFIX};

use super::{LogFormat, listen_address, log_filter, topic_allow};
use Fallback::{Default, Unset};
use Kind::{Choice, Count, Flag, Size, Span, Text};

pub static CATALOGUE: Catalogue = Catalogue {
    sections: &[
        Group::of::<Postgres>(),
        Group::of::<Kafka>(),
        Group::of::<OAuth>(),
        Group::of::<Aws>(),
        Group::of::<Outbox>(),
        Group::of::<Relay>(),
        Group::of::<Reaper>(),
        Group::of::<Admin>(),
        Group::of::<Log>(),
    ],
};

/// A configuration file that shows every setting with its default and its meaning.
pub fn example() -> String {
    let mut text = String::from(
        "# Every setting of outbox-relay, with its default. Settings without `#` are required. A commented-out setting shows\n\
         # its default, or an example if it has no default.\n\
         #\n\
         # An environment variable overrides the file: OUTBOX_RELAY__RELAY__BATCH_SIZE sets [relay] batch_size.\n\
         # `outbox-relay check-config` reports every problem in the file.\n",
    );
    let comment = |text: &str| text.lines().map(|line| format!("# {line}\n")).collect::<String>();
    for group in CATALOGUE.sections {
        _ = write!(text, "\n{}[{}]\n", comment(group.about), group.name);
        for setting in group.settings {
            _ = write!(text, "\n{}{}", comment(setting.help), assignment(setting));
        }
    }
    text
}

/// The setting as it is written in TOML. The catalogue has its value as the environment would give it.
fn assignment(setting: &Setting) -> String {
    let (mark, value) = match setting.fallback {
        Fallback::Required(value) => ("", value),
        Default(value) | Unset(value) => ("#", value),
    };
    match setting.kind {
        Kind::Table(table) => format!("[{}]\n{}", table.section, table.lines),
        Flag | Count(..) | Kind::Command => format!("{mark}{} = {value}\n", setting.key),
        _ => format!("{mark}{} = {value:?}\n", setting.key),
    }
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
/// Below this, retries of requests and redelivered events would take effect again.
const MODULE_RETENTION_LEAST: u64 = 60;

section! {
    "outbox" Outbox,
        "The table, and how its events become records." {
        table: TableName, Text, Default("public.outbox"), Restart,
            "Outbox table, with its schema. The other tables are named after it.";
        topic: TopicTemplate, Text, Default("events.{aggregate_type}"), Restart,
            "Topic of an event: a fixed name, or a name that contains {aggregate_type}, {event_type} or both.";
        topic_allow: Option<TopicAllow> => topic_allow, Text, Unset("audit.*, billing"), Restart,
            "Topics that an event may name in the optional column topic of the outbox: names, and prefixes that end in *, \
             separated\nby commas. An event that names another topic is rejected. If set, the column must exist.";
        on_sent: OnSent, Choice(OnSent::WORDS), Default("mark"), Restart,
            "What happens to an event after it is sent. \"mark\" sets sent_at, and the reaper deletes the row later. \
             \"delete\"\ndeletes the row at once: it is faster and leaves no history.";
        on_rejected: OnRejected, Choice(OnRejected::WORDS), Default("dead-letter"), Now,
            "What happens to an event that Kafka permanently rejects, the relay finds invalid, or PostgreSQL cannot \
             read.\n\"dead-letter\" moves it to the dead letters, and later events of its key are published. \
             \"block-key\" keeps it,\nand later events of its key wait until you resolve it.";
        rejections_before_hold: u32, Count(1, 1_000_000), Default("10"), Now,
            "After this many consecutive rejections in a topic, the relay holds the topic instead of applying on_rejected \
             to the\nnext rejected event. This keeps a wrong limit or validator from moving the whole outbox to the dead \
             letters.";
        envelope: Envelope, Choice(Envelope::WORDS), Default("none"), Restart,
            "Format of the headers. \"none\" sets event_id and event_type, or the headers of [outbox.headers]. \
             \"cloudevents\" sets\nthe attributes of CloudEvents 1.0 in binary mode; [outbox.headers] can add headers and \
             replace these.";
        cloudevents_source: Option<String>, Text, Unset("/shop"), Restart,
            "Value of the CloudEvents attribute source, a URI reference. It can contain the same placeholders as \
             [outbox.headers].\nRequired with envelope = \"cloudevents\".";
        [headers] HEADERS,
            "Headers of each record, by name. They replace the default headers, event_id and event_type. A value can \
             contain\n{event_id}, {event_type}, {aggregate_type}, {aggregate_id} and {created_at}. In the environment, a \
             header named\n\"source\" is OUTBOX_RELAY__OUTBOX__HEADERS__SOURCE.";
        [columns] COLUMNS,
            "Column names of an existing table, keyed by their standard names: id, event_id, aggregate_type, \
             aggregate_id,\nevent_type, payload, headers, created_at, sent_at and topic. Names are used literally, \
             without quotes. Unset names are\nthe standard ones. `outbox-relay migrate --adopt` adds what the table \
             lacks. In the environment, sent_at is\nOUTBOX_RELAY__OUTBOX__COLUMNS__SENT_AT.";
    } and {
        /// The headers that each record gets before those of its row.
        pub headers: Vec<HeaderTemplate>,
    }
}

section! {
    "relay" Relay,
        "Batches, workers and timeouts." {
        batch_size: usize, Count(1, 100_000), Default("10000"), Now,
            "Maximum number of events that a worker claims at once.";
        batch_bytes: ByteSize, Size(64 << 10, 1 << 30), Default("8MiB"), Now,
            "Maximum number of bytes that a worker claims at once. A single larger event is still published. Each worker \
             needs\nabout twice this much memory.";
        poll_interval: Duration, Span(ms(1), secs(HOUR)), Default("20ms"), Now,
            "Time between two checks for new events while there is nothing to publish. While events arrive, it is at most \
             10 ms.";
        flow_window: Duration, Span(ms(0), secs(10)), Default("250ms"), Now,
            "How long a worker keeps reading new events in one transaction while there is no backlog. A longer window \
             reduces\nthe load on PostgreSQL, but a crash redelivers up to one window of events per worker. \"0s\" \
             disables it.";
        workers: usize, Count(1, 64), Default("2"), Restart,
            "Number of concurrent batches, each with a PostgreSQL connection and a Kafka producer.";
        publish_timeout: Duration, Span(secs(1), secs(600)), Default("45s"), Now,
            "How long Kafka may take to acknowledge a batch. After that, the remaining events are released and sent \
             again. Keep\nit above 30s: a cluster may need that long to recover by itself. Vacuum can be held back for \
             this long,\nplus flow_window.";
        takeover_timeout: Duration, Span(secs(1), secs(600)), Default("10s"), Restart,
            "How long a frozen or disconnected relay keeps its events before other relays take over.";
        shutdown_timeout: Duration, Span(secs(1), secs(HOUR)), Default("50s"), Now,
            "How long a shutdown waits for events in flight. Keep it above publish_timeout, and keep the service's \
             TimeoutStopSec\nabove it.";
    }
}

section! {
    "reaper" Reaper,
        "Deletion of old rows." {
        enabled: bool, Flag, Default("true"), Restart,
            "Whether this relay deletes old rows.";
        retention: Duration, Span(secs(1), secs(3660 * DAY)), Default("1d"), Now,
            "How long an event is kept after it is sent.";
        interval: Duration, Span(secs(1), secs(DAY)), Default("1m"), Now,
            "How often the relay checks for old rows.";
        batch_size: usize, Count(1, 100_000), Default("5000"), Now,
            "Maximum number of rows deleted in one transaction, in whole pages of up to 100 rows: at least one page, at\n\
             most 256.";
        inbox_retention: Duration, Span(secs(MODULE_RETENTION_LEAST), secs(3660 * DAY)), Default("30d"), Now,
            "How long the inbox module, if installed, remembers processed events. Keep it above the retention\nof the \
             topics plus the longest replay.";
        idempotency_retention: Duration, Span(secs(MODULE_RETENTION_LEAST), secs(3660 * DAY)), Default("1d"), Now,
            "How long the idempotency module, if installed, keeps finished requests. Unfinished ones without\na committed \
             phase are deleted after 30 days, or later if this is longer; others are kept and reported.";
    }
}

section! {
    "admin" Admin,
        "The status page, metrics and health checks over HTTP: /, /metrics, /livez and /readyz." {
        listen: Option<SocketAddr> => listen_address, Text, Default("127.0.0.1:10187"), Restart,
            "Address and port to listen on. \"off\" disables the endpoints.";
    }
}

section! {
    "log" Log,
        "Logging." {
        level: String => log_filter, Text, Default("info"), Now,
            "Log level: off, error, warn, info, debug or trace, for everything or per \
             module:\n\"info,outbox_relay::kafka=debug\". A reload (SIGHUP) applies a new level without a \
             restart.\ndocs/operating.md lists the other settings that a reload applies.";
        format: LogFormat, Choice(LogFormat::WORDS), Default("auto"), Restart,
            "Log format: auto, text, json or journald. \"auto\" means journald if stderr is the journal, otherwise text.";
    }
}
