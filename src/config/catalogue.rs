//! The one definition of every setting: its type, range, default, help, and when a change takes effect.
//!
//! To add a setting, add it here and use the field. The sections' types, how they are read, environment names,
//! `config.example.toml`, the manual and the comparison of a reload derive from it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use hyper::Uri;
use pg_outbox::topic::TopicTemplate;

use super::Config;
use super::choices::{ClientAuthentication, LogFormat, OnRejected, OnSent, OptionalHeader};
use super::kafka::{Property, brokers};
use super::postgres::TlsMode;
use super::reader::Reader;
use super::rules::{listen_address, log_filter};
use super::secret::{Lookup, SecretSource};
use super::setting::{Compared, Section, read_setting, settings};
pub use super::setting::{Effect, Fallback, Kind, Setting, VARIABLE_PREFIX, find};
use super::size::ByteSize;
use super::table::TableName;
use super::values::FromText;

use Fallback::{Default, Required, Unset};
use Kind::{Choice, Count, File, Flag, Size, Span, Text, Words};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

settings! {
    section "postgres" Postgres at |config| Some(&config.postgres),
        "The database that holds the outbox." {
        url / url_file(
            "postgres-url",
            "A file that holds the url. Relative names, here and below, are looked up in $CREDENTIALS_DIRECTORY, then in\n\
            the folder of this file. It is read again at each connect."
        ): SecretSource, Text, Required("postgres://outbox_relay@localhost/app"), Restart,
            "Where the database is, as for psql: a URL, or words like \"host=db user=outbox_relay dbname=app\".";
        password / password_file(
            "postgres-password",
            "A file that holds the password. It is read again at each connect."
        ): Option<SecretSource>, Text, Unset("secret"), NextConnection,
            "The password, if the url has none; it comes before the one of the url. With another url in the environment, the\n\
            file's password is not used: give that url its own.";
        sslmode: Option<TlsMode>, Choice(TlsMode::WORDS), Unset("verify-full"), NextConnection,
            "How far TLS is required and verified; comes before the sslmode of the url, as do the next three.\n\
            When neither says it: verify-full, but prefer when every host is loopback or a socket.";
        sslrootcert: Option<String>, Text, Unset("ca.pem"), NextConnection,
            "The file with the certificate authorities to trust. When not given, or \"system\": those of the system.";
        sslcert: Option<String>, File, Unset("client.pem"), NextConnection,
            "The client's certificate, if the server asks for one.";
        sslkey: Option<String>, File, Unset("client.key"), NextConnection,
            "The key of the client's certificate.";
        connect_timeout: Option<Duration>, Span(ms(100), secs(600)), Default("10s"), Restart,
            "How long one attempt to connect to one address may take.";
        prepared_statements: bool, Flag, Default("true"), Restart,
            "Set to false behind a pooler in transaction mode that does not know prepared statements\n\
            (PgBouncer before 1.21, or with max_prepared_statements = 0).";
        application_name: Option<String>, Text, Default("outbox-relay"), Restart,
            "The name shown in pg_stat_activity.";
    } and {
        /// Where relative file names are looked up.
        pub(super) lookup: Lookup,
    }

    section "kafka" Kafka at |config| Some(&config.kafka),
        "The cluster that events go to." {
        bootstrap_servers: String => brokers, Text, Required("localhost:9092"), Restart,
            "The brokers to begin with, as host:port, separated by commas.";
        [properties]
            "Any property of librdkafka, by its own name, but for those that the guarantees rest on. Secrets have twins\n\
            too: \"sasl.password_file\". By environment: OUTBOX_RELAY__KAFKA__PROPERTIES__SASL_PASSWORD.";
    } and {
        /// The properties that the user chose, by librdkafka's names; each passed the
        /// [`PropertyCheck`](super::kafka::properties::PropertyCheck).
        pub properties: BTreeMap<String, Property>,
        /// Where tokens to log in with come from, with SASL OAUTHBEARER.
        pub oauth: Option<OAuth>,
    }

    section "kafka.oauth" OAuth at |config| config.kafka.oauth.as_ref(),
        "A login with tokens (SASL OAUTHBEARER, client credentials), in place of a user and a password; it wants\n\
            \"security.protocol\" = \"sasl_ssl\" in [kafka.properties]. In use when token_url is set." {
        token_url: Uri, Text, Unset("https://login.example.com/oauth2/token"), Restart,
            "The token endpoint of the identity provider. Without TLS only on this host itself.";
        client_id: String, Text, Unset("outbox-relay"), Restart,
            "Who the relay is at the identity provider.";
        client_secret / client_secret_file(
            "kafka-client-secret",
            "A file that holds the client_secret. It is read again for each token."
        ): SecretSource, Text, Unset("secret"), Restart,
            "The secret of this client.";
        client_authentication: ClientAuthentication, Choice(ClientAuthentication::WORDS), Default("basic"), Restart,
            "How id and secret are sent: in the header Authorization, as every provider must allow, or in the body.";
        scope: Option<String>, Text, Unset("kafka"), Restart,
            "The scopes to ask for, separated by spaces.";
        audience: Option<String>, Text, Unset("kafka"), Restart,
            "The audience to ask for, where the provider wants one.";
        ca_location: Option<PathBuf>, File, Unset("oauth-ca.pem"), Restart,
            "The certificate authorities that may sign for the token endpoint. When not given: those of the system.";
    }

    section "outbox" Outbox at |config| Some(&config.outbox),
        "The table, and how its rows become records." {
        table: TableName, Text, Default("public.outbox"), Restart,
            "The outbox table, with its schema. Its other tables are named after it.";
        topic: TopicTemplate, Text, Default("events.{aggregate_type}"), Restart,
            "The topic of an event, from the columns of its row.";
        on_sent: OnSent, Choice(OnSent::WORDS), Default("mark"), Restart,
            "What happens to a row that Kafka has: mark sets sent_at, and the reaper deletes it later; delete is faster\n\
            and leaves no history.";
        on_rejected: OnRejected, Choice(OnRejected::WORDS), Default("dead-letter"), Now,
            "What happens to a row that Kafka definitely rejects, alone: dead-letter moves it to the dead letters, and the\n\
            rows behind it go on; block-key keeps it, and the rows of its key wait until you decide.";
        rejections_before_hold: u32, Count(1, 1_000_000), Default("10"), Now,
            "After so many rejected rows of one topic, with no success between them, the next one holds the topic instead:\n\
            a broken limit or validator must not empty the outbox into the dead letters.";
        optional_headers: Vec<OptionalHeader>, Words(OptionalHeader::WORDS), Default(""), Restart,
            "Headers to add to event_id, event_type and the row's own: \"aggregate_type\", \"created_at\".";
    }

    section "relay" Relay at |config| Some(&config.relay),
        "How much is moved at once, and how long things may take." {
        batch_size: usize, Count(1, 100_000), Default("10000"), Now,
            "The most rows that one worker claims at once.";
        batch_bytes: ByteSize, Size(64 << 10, 1 << 30), Default("8MiB"), Now,
            "The most bytes that one worker claims at once; a single larger row still goes. Memory is about\n\
            workers times this.";
        poll_interval: Duration, Span(ms(1), secs(HOUR)), Default("50ms"), Now,
            "The longest pause between two looks at an empty outbox; after work the pauses begin at 1ms.";
        workers: usize, Count(1, 64), Default("2"), Restart,
            "How many batches are under way at once, each with a Postgres connection and a Kafka producer.";
        publish_timeout: Duration, Span(secs(1), secs(600)), Default("45s"), Now,
            "How long Kafka may take to acknowledge a batch before what is left of it is released and sent anew.\n\
            Keep it above the 30s that a cluster may take to recover by itself. Vacuum can be held back this long.";
        takeover_timeout: Duration, Span(secs(1), secs(600)), Default("10s"), Restart,
            "How long a relay that froze or vanished keeps its rows before others take over.";
        shutdown_timeout: Duration, Span(secs(1), secs(HOUR)), Default("50s"), Now,
            "How long SIGTERM waits for what is in flight. Keep it above publish_timeout, and TimeoutStopSec of the\n\
            service above it.";
    }

    section "reaper" Reaper at |config| Some(&config.reaper),
        "The deletion of rows that were sent long ago." {
        enabled: bool, Flag, Default("true"), Restart,
            "Whether this relay deletes old rows.";
        retention: Duration, Span(secs(1), secs(3660 * DAY)), Default("1d"), Now,
            "How long a row is kept after it was sent.";
        interval: Duration, Span(secs(1), secs(DAY)), Default("1m"), Now,
            "How often old rows are looked for.";
        batch_size: usize, Count(1, 100_000), Default("5000"), Now,
            "The most rows that are deleted in one transaction.";
        inbox_retention: Duration, Span(secs(1), secs(3660 * DAY)), Default("30d"), Now,
            "How long the module inbox keeps which events were processed, where it was made. Keep it above the retention\n\
            of the topics plus the longest replay.";
        idempotency_retention: Duration, Span(secs(1), secs(3660 * DAY)), Default("1d"), Now,
            "How long the module idempotency keeps finished requests, where it was made. Unfinished ones that are older are\n\
            reported, and kept.";
    }

    section "admin" Admin at |config| Some(&config.admin),
        "Metrics and health over HTTP: /metrics, /livez, /readyz." {
        listen: Option<SocketAddr> => listen_address, Text, Default("127.0.0.1:10187"), Restart,
            "The address and port to listen on; \"off\" opens no port.";
    }

    section "log" Log at |config| Some(&config.log),
        "What is logged, and how." {
        level: String => log_filter, Text, Default("info"), Now,
            "off, error, warn, info, debug or trace, for all or for parts: \"info,outbox_relay::kafka=debug\". SIGHUP changes\n\
            it in a running relay, as it does most limits and intervals; docs/operating.md has the list.";
        format: LogFormat, Choice(LogFormat::WORDS), Default("auto"), Restart,
            "auto means journald under systemd, else text.";
    }
}
