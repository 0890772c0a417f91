//! The one definition of every setting: its type, range, default, help, and when a change takes effect.
//!
//! To add a setting, add it here and use the field. The types of the sections, their parsing, environment variables,
//! `config.example.toml`, the manual and the comparison at a reload derive from it. `CONTRIBUTING.md` lists what does not. If
//! the effect is [`Effect::Now`], `apply` in `supervisor.rs` must apply the new value to a running relay.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use hyper::Uri;
use pg_outbox::topic::TopicTemplate;

use super::Config;
use super::choices::{ClientAuthentication, Envelope, LogFormat, OnRejected, OnSent};
use super::kafka::{Property, aws, brokers};
use super::outbox::headers::HeaderTemplate;
use super::outbox::table::TableName;
use super::outbox::topic_allow::TopicAllow;
use super::password_command::PasswordCommand;
use super::postgres::TlsMode;
use super::reading::reader::Reader;
use super::reading::values::FromText;
use super::rules::{listen_address, log_filter, topic_allow};
use super::secret::{Lookup, SecretSource};
use super::setting::{Compared, Readable, Section, read_setting, settings};
pub use super::setting::{Effect, Fallback, Kind, Setting, VARIABLE_PREFIX, find};
use super::size::ByteSize;
use super::writing::shown::Shown;

use Fallback::{Default, Required, Unset};
use Kind::{Choice, Columns, Command, Count, File, Flag, Headers, Properties, Size, Span, Text};

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

settings! {
    section "postgres" Postgres at |config| Some(&config.postgres),
        "The database that contains the outbox." {
        url / url_file(
            "postgres-url",
            "File that contains the url. Relative names, here and below, are looked up in $CREDENTIALS_DIRECTORY, \
             then in\nthe directory of the configuration file. The file is reloaded for each connection."
        ): SecretSource, Text, Required("postgres://outbox_relay@localhost/app"), Restart,
            "Connection string of the database: a URL, or keywords such as \"host=db user=outbox_relay dbname=app\".";
        password / password_file(
            "postgres-password",
            "File that contains the password. The file is reloaded for each connection."
        ): Option<SecretSource>, Text, Unset("secret"), NextConnection,
            "The password. It overrides the password in the url. If the environment sets another url, the password \
             in the\nconfiguration file is not used: set OUTBOX_RELAY__POSTGRES__PASSWORD as well.";
        password_command: Option<PasswordCommand>, Command, Unset("[\"aws\", \"rds\", \"generate-db-auth-token\", \"--hostname\", \"db\", \"--port\", \"5432\", \"--username\", \"outbox_relay\"]"), NextConnection,
            "Program, with its arguments, that prints the password. Use it instead of password or password_file. It \
             is \
             run before\neach connection, without a shell, and must finish within 10 s. Its standard output is \
             never logged.";
        sslmode: Option<TlsMode>, Choice(TlsMode::WORDS), Unset("verify-full"), NextConnection,
            "How strictly TLS is required and verified. This setting and the next three override the parameters of \
             the same\nname in the url. If sslmode is set neither here nor in the url, it is verify-full, or \
             prefer if every host is a\nloopback address or a Unix socket.";
        sslrootcert: Option<String>, Text, Unset("ca.pem"), NextConnection,
            "File with the trusted certificate authorities. If unset or \"system\", the system's trust \
             store is used.";
        sslcert: Option<String>, File, Unset("client.pem"), NextConnection,
            "Client certificate, if the server requires one.";
        sslkey: Option<String>, File, Unset("client.key"), NextConnection,
            "Private key of the client certificate.";
        connect_timeout: Option<Duration>, Span(ms(100), secs(600)), Default("10s"), Restart,
            "Timeout for one attempt to connect to one address.";
        prepared_statements: bool, Flag, Default("true"), Restart,
            "Set to false behind a pooler in transaction mode that does not support prepared statements\n(PgBouncer \
             before 1.21, or with max_prepared_statements = 0).";
        application_name: Option<String>, Text, Default("outbox-relay"), Restart,
            "Name shown in pg_stat_activity.";
    } and {
        /// Where relative file names are looked up.
        pub(super) lookup: Lookup,
    }

    section "kafka" Kafka at |config| Some(&config.kafka),
        "The cluster to publish to." {
        bootstrap_servers: String => brokers, Text, Required("localhost:9092"), Restart,
            "Bootstrap brokers as host:port, separated by commas.";
        [properties] Properties,
            "Any librdkafka property, by its own name, except those that the guarantees depend on. Secrets \
             can be read from\nfiles: \"sasl.password_file\". In the environment, sasl.password is \
             OUTBOX_RELAY__KAFKA__PROPERTIES__SASL_PASSWORD.";
    } and {
        /// The properties that the user set, by name. Each passed the
        /// [`PropertyCheck`](super::kafka::properties::PropertyCheck).
        pub properties: BTreeMap<String, Property>,
        /// The token endpoint for SASL OAUTHBEARER.
        pub oauth: Option<OAuth>,
        /// How to sign tokens for SASL OAUTHBEARER with AWS credentials.
        pub aws: Option<Aws>,
    }

    section "kafka.oauth" OAuth at |config| config.kafka.oauth.as_ref(),
        "Authentication with tokens (SASL OAUTHBEARER, client credentials) instead of a user name and password. \
         Requires\n\"security.protocol\" = \"sasl_ssl\" in [kafka.properties]. Used if token_url \
         is set." {
        token_url: Uri, Text, Unset("https://login.example.com/oauth2/token"), Restart,
            "Token endpoint of the identity provider. The URL must use https, unless the host is a loopback address.";
        client_id: String, Text, Unset("outbox-relay"), Restart,
            "Client ID of the relay at the identity provider.";
        client_secret / client_secret_file(
            "kafka-client-secret",
            "File that contains the client_secret. The file is reloaded for each token."
        ): SecretSource, Text, Unset("secret"), Restart,
            "Client secret.";
        client_authentication: ClientAuthentication, Choice(ClientAuthentication::WORDS), Default("basic"), Restart,
            "How the ID and the secret are sent. \"basic\" uses the Authorization header, which every \
             provider must support. \"post\"\nuses the body of the request.";
        scope: Option<String>, Text, Unset("kafka"), Restart,
            "Requested scopes, separated by spaces.";
        audience: Option<String>, Text, Unset("kafka"), Restart,
            "Requested audience, if the provider requires one.";
        ca_location: Option<PathBuf>, File, Unset("oauth-ca.pem"), Restart,
            "Trusted certificate authorities for the token endpoint. If unset, the system's trust store \
             is used.";
    }

    section "kafka.aws" Aws at |config| config.kafka.aws.as_ref(),
        "Authentication with AWS IAM, for Amazon MSK. The relay signs tokens with the AWS credentials of its environment\n\
         (SASL OAUTHBEARER). Requires \"security.protocol\" = \"sasl_ssl\" in [kafka.properties]. Used if region is set. The\n\
         packages support it; other builds need --features aws." {
        region: String => aws::region, Text, Unset("eu-central-1"), Restart,
            "AWS region of the cluster.";
        role_arn: Option<String> => aws::role_arn, Text, Unset("arn:aws:iam::123456789012:role/outbox-relay"), Restart,
            "IAM role to assume. If unset, the relay logs in with its own credentials.";
        role_session_name: String => aws::session_name, Text, Default("outbox-relay"), Restart,
            "Name of the session of the assumed role. CloudTrail shows it.";
        external_id: Option<String> => aws::external_id, Text, Unset("12345"), Restart,
            "External ID, if the trust policy of the role requires one.";
    }

    section "outbox" Outbox at |config| Some(&config.outbox),
        "The table, and how its events become records." {
        table: TableName, Text, Default("public.outbox"), Restart,
            "Outbox table, with its schema. The other tables are named after it.";
        topic: TopicTemplate, Text, Default("events.{aggregate_type}"), Restart,
            "Topic of an event: a fixed name, or a name that contains {aggregate_type}, {event_type} or both.";
        topic_allow: Option<TopicAllow> => topic_allow, Text, Unset("audit.*, billing"), Restart,
            "Topics that an event may name in the optional column topic of the outbox: names, and prefixes that end in \
             *, separated\nby commas. An event that names another topic is rejected. If set, the column must exist.";
        on_sent: OnSent, Choice(OnSent::WORDS), Default("mark"), Restart,
            "What happens to an event after it is sent. \"mark\" sets sent_at, and the reaper deletes the \
             row later. \"delete\"\ndeletes the row at once: it is faster and leaves no history.";
        on_rejected: OnRejected, Choice(OnRejected::WORDS), Default("dead-letter"), Now,
            "What happens to an event that Kafka permanently rejects, the relay finds invalid, or PostgreSQL cannot \
             read.\n\"dead-letter\" moves it to the dead letters, and later events of its key are published. \
             \"block-key\" keeps it,\nand later events of its key wait until you resolve it.";
        rejections_before_hold: u32, Count(1, 1_000_000), Default("10"), Now,
            "After this many consecutive rejections in a topic, the relay holds the topic instead of applying \
             on_rejected to the\nnext rejected event. This keeps a wrong limit or validator from moving the whole outbox to \
             the dead letters.";
        envelope: Envelope, Choice(Envelope::WORDS), Default("none"), Restart,
            "Format of the headers. \"none\" sets event_id and event_type, or the headers of [outbox.headers]. \
             \"cloudevents\" sets\nthe attributes of CloudEvents 1.0 in binary mode; [outbox.headers] can add \
             headers and replace these.";
        cloudevents_source: Option<String>, Text, Unset("/shop"), Restart,
            "Value of the CloudEvents attribute source, a URI reference. It can contain the same placeholders as \
             [outbox.headers].\nRequired with envelope = \"cloudevents\".";
        [headers] Headers,
            "Headers of each record, by name. They replace the default headers, event_id and event_type. A value can \
             contain\n{event_id}, {event_type}, {aggregate_type}, {aggregate_id} and {created_at}. In the environment, \
             a header named\n\"source\" is OUTBOX_RELAY__OUTBOX__HEADERS__SOURCE.";
        [columns] Columns,
            "Column names of an existing table, keyed by their standard names: id, event_id, aggregate_type, aggregate_id,\n\
             event_type, payload, headers, created_at, sent_at and topic. Names are used literally, without quotes. Unset names \
             are\nthe standard ones. `outbox-relay migrate --adopt` adds what the table lacks. In the environment, sent_at is\n\
             OUTBOX_RELAY__OUTBOX__COLUMNS__SENT_AT.";
    } and {
        /// The headers that each record gets before those of its row.
        pub headers: Vec<HeaderTemplate>,
    }

    section "relay" Relay at |config| Some(&config.relay),
        "Batches, workers and timeouts." {
        batch_size: usize, Count(1, 100_000), Default("10000"), Now,
            "Maximum number of events that a worker claims at once.";
        batch_bytes: ByteSize, Size(64 << 10, 1 << 30), Default("8MiB"), Now,
            "Maximum number of bytes that a worker claims at once. A single larger event is still \
             published. Each worker needs\nabout twice this much memory.";
        poll_interval: Duration, Span(ms(1), secs(HOUR)), Default("20ms"), Now,
            "Time between two checks for new events while there is nothing to publish. While events arrive, it is \
             at most 10 ms.";
        flow_window: Duration, Span(ms(0), secs(10)), Default("250ms"), Now,
            "How long a worker keeps reading new events in one transaction while there is no backlog. A longer \
             window reduces\nthe load on PostgreSQL, but a crash redelivers up to one window of events per worker. \"0s\" disables it.";
        workers: usize, Count(1, 64), Default("2"), Restart,
            "Number of concurrent batches, each with a PostgreSQL connection and a Kafka producer.";
        publish_timeout: Duration, Span(secs(1), secs(600)), Default("45s"), Now,
            "How long Kafka may take to acknowledge a batch. After that, the remaining events are released \
             and sent again. Keep\nit above 30s: a cluster may need that long to recover by itself. Vacuum can be \
             held back for \
             this long,\nplus flow_window.";
        takeover_timeout: Duration, Span(secs(1), secs(600)), Default("10s"), Restart,
            "How long a frozen or disconnected relay keeps its events before other relays take over.";
        shutdown_timeout: Duration, Span(secs(1), secs(HOUR)), Default("50s"), Now,
            "How long a shutdown waits for events in flight. Keep it above publish_timeout, and keep the \
             service's TimeoutStopSec\nabove it.";
    }

    section "reaper" Reaper at |config| Some(&config.reaper),
        "Deletion of old rows." {
        enabled: bool, Flag, Default("true"), Restart,
            "Whether this relay deletes old rows.";
        retention: Duration, Span(secs(1), secs(3660 * DAY)), Default("1d"), Now,
            "How long an event is kept after it is sent.";
        interval: Duration, Span(secs(1), secs(DAY)), Default("1m"), Now,
            "How often the relay checks for old rows.";
        batch_size: usize, Count(1, 100_000), Default("5000"), Now,
            "Maximum number of rows deleted in one transaction.";
        inbox_retention: Duration, Span(secs(MODULE_RETENTION_LEAST), secs(3660 * DAY)), Default("30d"), Now,
            "How long the inbox module, if installed, remembers processed events. Keep it above the retention\nof \
             the topics plus the longest replay.";
        idempotency_retention: Duration, Span(secs(MODULE_RETENTION_LEAST), secs(3660 * DAY)), Default("1d"), Now,
            "How long the idempotency module, if installed, keeps finished requests. Unfinished ones \
             without\na committed phase are deleted after 30 days, or later if this is longer; others are kept and reported.";
    }

    section "admin" Admin at |config| Some(&config.admin),
        "The status page, metrics and health checks over HTTP: /, /metrics, /livez and /readyz." {
        listen: Option<SocketAddr> => listen_address, Text, Default("127.0.0.1:10187"), Restart,
            "Address and port to listen on. \"off\" disables the endpoints.";
    }

    section "log" Log at |config| Some(&config.log),
        "Logging." {
        level: String => log_filter, Text, Default("info"), Now,
            "Log level: off, error, warn, info, debug or trace, for everything or per \
             module:\n\"info,outbox_relay::kafka=debug\". A reload (SIGHUP) applies a new level without a \
             restart.\ndocs/operating.md lists the other settings that a reload applies.";
        format: LogFormat, Choice(LogFormat::WORDS), Default("auto"), Restart,
            "Log format: auto, text, json or journald. \"auto\" means journald under systemd, otherwise text.";
    }
}
