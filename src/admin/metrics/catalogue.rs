//! The catalogue of metrics. `docs/metrics.md` is rendered from it.
//!
//! To add a metric, add it here. `CONTRIBUTING.md` lists what else to edit.

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The name, with `_total` for a counter. The samples of a histogram append `_bucket`, `_sum` and `_count`.
    pub name: &'static str,
    /// The kind of its values.
    pub kind: MetricKind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// The operator's question that it answers.
    pub answers: Question,
    /// The meaning.
    pub help: &'static str,
    /// What a bad value looks like; empty if no value is bad.
    pub bad: &'static str,
}

/// The kind of a metric's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Increases until the process restarts.
    Counter,
    /// Increases and decreases.
    Gauge,
    /// A distribution of values.
    Histogram,
    /// Always 1; the labels carry the information.
    Info,
}

/// An operator's question, in the order in which they are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Does it run, and is it late?
    Late,
    /// How fast is it?
    Fast,
    /// What failed?
    Failed,
    /// What does it cost?
    Costs,
}

impl Metric {
    /// The name without the suffix of its kind.
    pub fn family(&self) -> &'static str {
        match self.kind {
            MetricKind::Counter => self.name.trim_end_matches("_total"),
            MetricKind::Info => self.name.trim_end_matches("_info"),
            MetricKind::Gauge | MetricKind::Histogram => self.name,
        }
    }

    /// The names of its samples.
    pub fn samples(&self) -> Vec<String> {
        match self.kind {
            MetricKind::Histogram => {
                ["_bucket", "_sum", "_count"].map(|end| format!("{}{end}", self.name)).into()
            }
            _ => vec![self.name.to_owned()],
        }
    }

    /// The base unit at the end of its name, if it has one.
    pub fn unit(&self) -> Option<&'static str> {
        ["seconds", "bytes"].into_iter().find(|unit| self.family().ends_with(&format!("_{unit}")))
    }
}

macro_rules! catalogue {
    ($($question:ident {
        $($constant:ident = $kind:ident $name:literal [$($label:literal)*], $help:literal, $bad:literal;)*
    })*) => {
        $($(pub(super) const $constant: Metric = Metric {
            name: $name,
            kind: MetricKind::$kind,
            labels: &[$($label),*],
            answers: Question::$question,
            help: $help,
            bad: $bad,
        };)*)*

        /// All metrics.
        pub const CATALOGUE: &[Metric] = &[$($($constant),*),*];
    };
}

catalogue! {
    Late {
        READY = Gauge "outbox_relay_ready" [],
            "1 while the relay can publish, as reported by /readyz",
            "0: Kafka or PostgreSQL is unavailable, or the relay is shutting down";
        KAFKA_UP = Gauge "outbox_relay_kafka_up" [],
            "1 while Kafka is available",
            "0: claims are suspended";
        POSTGRES_UP = Gauge "outbox_relay_postgres_up" [],
            "1 while PostgreSQL is available to all parts of the relay",
            "0: nothing is published";
        OLDEST_UNSENT = Gauge "outbox_relay_oldest_unsent_seconds" [],
            "Age of the oldest unsent row by the database clock, including rows that are held, blocked or paused; \
             measured every 5 s, \
             less \
             often if the measurement is slow",
            "more than a few seconds, or an increase of one second per second: events are waiting";
        BACKLOG = Gauge "outbox_relay_backlog_rows" [],
            "Unsent rows, but rows that are held, blocked or paused may be left out; exact up to 10000, above that \
             estimated from the range of IDs",
            "an increase that lasts for minutes: more is inserted than published";
        MEASURED = Gauge "outbox_relay_measurement_age_seconds" [],
            "Time since the last measurement of the backlog and the oldest unsent row",
            "more than a few minutes: PostgreSQL is unavailable or the measurement fails, so both metrics are outdated";
        LATENCY = Histogram "outbox_relay_latency_seconds" [],
            "Time from the start of the transaction that inserted an event to Kafka's acknowledgement of that \
             event, by the database clock",
            "a high quantile far above its usual value";
        UNSETTLED = Gauge "outbox_relay_unsettled_rows" [],
            "Rows that Kafka has acknowledged and that are not marked as sent yet",
            "above 0 for minutes: another session holds locks on outbox rows, or settlements fail; after a crash, \
             these rows would be sent again";
        OLDEST_WRITER = Gauge "outbox_relay_oldest_writer_seconds" [],
            "Time for which the oldest transaction that has written to the outbox, or drawn an ID for it, has been open; \
             0 while there is nothing to publish",
            "more than a few minutes: `outbox-relay doctor` names the session; vacuum cannot remove sent rows meanwhile";
        PROGRESS = Gauge "outbox_relay_progress_age_seconds" [],
            "Time since the relay last polled for work; /livez fails at 60",
            "more than a few seconds: a statement or the process hangs";
    }
    Fast {
        PUBLISHED = Counter "outbox_relay_published_total" [],
            "Rows that were marked as sent",
            "no increase while there is a backlog";
        RECOVERED = Counter "outbox_relay_recovered_total" [],
            "Published rows that were settled without being resent, because Kafka had already acknowledged them",
            "a steady increase: settlements fail repeatedly";
        TOPIC_RECORDS = Counter "outbox_relay_topic_records_total" ["topic"],
            "Records that Kafka has acknowledged, by topic; the first 50 topics have their own label value, and all others \
             count as `other`",
            "no increase for a topic that always has events";
        TOPIC_BYTES = Counter "outbox_relay_topic_bytes_total" ["topic"],
            "Size of the rows of acknowledged records, as received from PostgreSQL, by topic",
            "";
        BATCH_ROWS = Histogram "outbox_relay_batch_rows" [],
            "Rows per batch",
            "";
        BATCH_SECONDS = Histogram "outbox_relay_batch_seconds" [],
            "Time from the claim of a batch to its confirmed COMMIT",
            "more than a second; the part that is not in outbox_relay_publish_seconds is spent in PostgreSQL";
        PUBLISH_SECONDS = Histogram "outbox_relay_publish_seconds" [],
            "Time from sending the first row of a batch to its last acknowledgement",
            "more than a second: Kafka is slow";
        WORKERS = Gauge "outbox_relay_workers" [],
            "Workers",
            "";
        WORKERS_BUSY = Gauge "outbox_relay_workers_busy" [],
            "Workers that are processing a batch",
            "all workers, all the time: the relay is at its limit";
        CLAIMED_LANES = Gauge "outbox_relay_claimed_lanes" [],
            "Lanes claimed by workers, out of 64",
            "";
        LANES_ELSEWHERE = Counter "outbox_relay_lanes_locked_elsewhere_total" [],
            "Requested lanes that another relay had claimed",
            "";
        CLAIMS = Counter "outbox_relay_claims_total" [],
            "Claims that got at least one lane",
            "";
        CLAIMS_EMPTY = Counter "outbox_relay_claims_empty_total" [],
            "Claims that got a lane but no row, because another relay was faster",
            "nearly as high as outbox_relay_claims_total: there are too many relays";
        SCANS = Counter "outbox_relay_scans_total" [],
            "Scans for lanes with unsent rows",
            "";
        SCANS_EMPTY = Counter "outbox_relay_scans_empty_total" [],
            "Scans for lanes with unsent rows that found nothing new",
            "";
    }
    Failed {
        HELD_TOPICS = Gauge "outbox_relay_held_topics" [],
            "Held topics, whose rows wait; status lists them with the reason",
            "above 0";
        TOPIC_HELD = Gauge "outbox_relay_topic_held" ["topic" "reason"],
            "1 for each held topic, with the reason; at most 100 topics",
            "1";
        HOLDS = Counter "outbox_relay_holds_total" [],
            "Holds that this relay has placed on topics",
            "repeated increases: the topic is unstable";
        BLOCKED_KEYS = Gauge "outbox_relay_blocked_keys" [],
            "Blocked keys: their first event cannot be published, and later events wait",
            "above 0: an operator must resolve them";
        PAUSED = Gauge "outbox_relay_paused" ["scope"],
            "Active pauses of everything, a topic or a key; status lists them",
            "above 0 for longer than intended: events wait until an operator resumes them";
        DEAD_LETTERS = Counter "outbox_relay_dead_letters_total" [],
            "Rows that were moved to the dead letters",
            "an increase: events were not delivered to their consumers";
        REJECTED = Counter "outbox_relay_rejected_total" ["reason"],
            "Rejected rows (dead letters and blocked keys), by reason",
            "an increase";
        SESSIONS_FAILED = Counter "outbox_relay_sessions_failed_total" [],
            "Producers that were replaced after a failure",
            "an increase that lasts for minutes: the failure persists";
        KAFKA_FAILURES = Counter "outbox_relay_kafka_failures_total" ["reason"],
            "Producers that were replaced after a failure, by reason (see docs/error-codes.md)",
            "an increase that lasts for minutes";
        POSTGRES_FAULTS = Counter "outbox_relay_postgres_faults_total" [],
            "Claims that were ended by a PostgreSQL error; their rows are claimed again",
            "an increase that lasts for minutes";
        POSTGRES_CONNECTIONS = Counter "outbox_relay_postgres_connections_total" [],
            "Connections opened to PostgreSQL, including reconnects",
            "a steady increase: connections are lost";
        REAPER_FAULTS = Counter "outbox_relay_reaper_faults_total" [],
            "Failed batches of the reaper",
            "an increase that lasts for hours: the table grows";
        UNFINISHED = Gauge "outbox_relay_idempotency_unfinished_requests" [],
            "Unfinished requests with an idempotency key that are older than idempotency_retention, at the last run \
             of the reaper; counted up to 1000",
            "more than 0: the application is not completing them";
        REQUEST_ERRORS = Counter "outbox_relay_kafka_request_errors_total" [],
            "Requests that could not be sent to a broker, and responses that could not be read",
            "an increase that lasts for minutes";
        REQUEST_RETRIES = Counter "outbox_relay_kafka_request_retries_total" [],
            "Requests that the Kafka client retried",
            "an increase that lasts for minutes: partition leaders are changing, or brokers are overloaded";
        REQUEST_TIMEOUTS = Counter "outbox_relay_kafka_request_timeouts_total" [],
            "Requests to brokers that timed out",
            "an increase";
        DISCONNECTS = Counter "outbox_relay_kafka_disconnects_total" [],
            "Closed connections to brokers; brokers close idle connections after several minutes",
            "an increase while rows are published";
    }
    Costs {
        TRANSACTIONS = Counter "outbox_relay_postgres_transactions_total" [],
            "Transactions begun in PostgreSQL, including read-only ones",
            "more than about 100 per second per relay while nothing is inserted";
        REAPED = Counter "outbox_relay_reaped_total" [],
            "Rows deleted because they were past retention",
            "no increase for hours while rows are sent: the table grows";
        TABLE_BYTES = Gauge "outbox_relay_table_bytes" ["table"],
            "Size of the outbox, the dead letters and the history, with indexes and TOAST; measured once a minute",
            "a steady increase: the disk of the database server fills up";
        VACUUM_HELD_BACK = Gauge "outbox_relay_vacuum_held_back_transactions" [],
            "Transactions that have begun since the oldest open transaction, prepared transaction or replication slot \
             that keeps vacuum from removing rows; measured once a minute",
            "more than a million: the table grows, and claims become slower";
        TRANSACTION_ID_AGE = Gauge "outbox_relay_transaction_id_age" [],
            "Transactions that have begun since the oldest one in the outbox or the database that vacuum has not \
             frozen; measured once a minute",
            "more than a billion: PostgreSQL accepts no writes at two billion";
        REAPER_BATCHES = Counter "outbox_relay_reaper_batches_total" [],
            "Batches of the reaper, including empty ones; only one relay reaps at a time",
            "";
        REQUESTS = Counter "outbox_relay_kafka_requests_total" [],
            "Requests to brokers, including retries",
            "";
        RESPONSES = Counter "outbox_relay_kafka_responses_total" [],
            "Broker responses for which a round trip was measured",
            "";
        ROUND_TRIPS = Counter "outbox_relay_kafka_round_trip_seconds_total" [],
            "Total time between requests to brokers and their responses. Divide it by \
             outbox_relay_kafka_responses_total to get the mean round trip. For requests that carry records, the \
             round trip includes replication",
            "";
        BROKER_SECONDS = Gauge "outbox_relay_kafka_broker_round_trip_seconds" ["broker"],
            "99th percentile of a broker's recent response times, for the slowest producer; at most 50 brokers",
            "one broker is much slower than the others";
        IN_FLIGHT = Gauge "outbox_relay_kafka_requests_in_flight" [],
            "Requests waiting for a response from a broker",
            "";
        WAITING = Gauge "outbox_relay_kafka_requests_waiting" [],
            "Requests waiting to be sent to a broker",
            "above 0 for minutes: a broker or the network cannot keep up";
        THROTTLE = Gauge "outbox_relay_kafka_throttle_seconds" [],
            "Longest delay of a request by a quota of the brokers, in the client's last report",
            "above 0: the brokers limit the relay's rate";
        QUEUED = Gauge "outbox_relay_kafka_queued_records" [],
            "Unacknowledged records in the Kafka client",
            "";
        QUEUED_BYTES = Gauge "outbox_relay_kafka_queued_bytes" [],
            "Size of the unacknowledged records in the Kafka client",
            "";
        SENT_BYTES = Counter "outbox_relay_kafka_sent_bytes_total" [],
            "Bytes sent to brokers, compressed",
            "";
        RECEIVED_BYTES = Counter "outbox_relay_kafka_received_bytes_total" [],
            "Bytes received from brokers",
            "";
        CONNECTS = Counter "outbox_relay_kafka_connects_total" [],
            "Attempts to connect to a broker",
            "a steady increase: connections are lost or cannot be opened";
        CPU = Counter "process_cpu_seconds_total" [],
            "CPU time of the process",
            "an increase of nearly one second per second: the relay is at its limit";
        RESIDENT = Gauge "process_resident_memory_bytes" [],
            "Resident memory of the process",
            "an increase that lasts for hours";
        THREADS = Gauge "process_threads" [],
            "Threads of the process",
            "";
        OPEN_FDS = Gauge "process_open_fds" [],
            "Open file descriptors",
            "near process_max_fds";
        MAX_FDS = Gauge "process_max_fds" [],
            "Maximum number of open file descriptors",
            "";
        START_TIME = Gauge "process_start_time_seconds" [],
            "Start time of the process, in seconds since 1970",
            "a change: the process was restarted";
        BUILD = Info "outbox_relay_build_info" ["version"],
            "Version of the relay",
            "several versions for longer than a deployment takes";
    }
}
