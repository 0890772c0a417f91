//! Every metric once: `/metrics` is registered from it, and `docs/metrics.md` rendered.

/// One metric, as a dashboard names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name, with the `_total` of a counter; a histogram's samples have `_bucket`, `_sum` and `_count` behind it.
    pub name: &'static str,
    /// What its values are.
    pub kind: Kind,
    /// The names of its labels; few values each.
    pub labels: &'static [&'static str],
    /// The question of an operator that it answers.
    pub answers: Question,
    /// What it means.
    pub help: &'static str,
    /// What a bad value looks like; empty where none is.
    pub bad: &'static str,
}

/// What a metric's values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, but for a restart of the process.
    Counter,
    /// Goes up and down.
    Gauge,
    /// How many values were at most so large.
    Histogram,
    /// Always 1; the labels say something.
    Info,
}

/// What people ask, in the order in which they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Does it run, and are we late?
    Late,
    /// How fast is it?
    Fast,
    /// What failed?
    Failed,
    /// What does it cost?
    Costs,
}

impl Metric {
    /// Its name without what the kind puts behind it.
    pub fn family(&self) -> &'static str {
        match self.kind {
            Kind::Counter => self.name.trim_end_matches("_total"),
            Kind::Info => self.name.trim_end_matches("_info"),
            Kind::Gauge | Kind::Histogram => self.name,
        }
    }

    /// The names under which a query finds it.
    pub fn samples(&self) -> Vec<String> {
        match self.kind {
            Kind::Histogram => ["_bucket", "_sum", "_count"].map(|end| format!("{}{end}", self.name)).into(),
            _ => vec![self.name.to_owned()],
        }
    }

    /// The base unit that its name ends with; none for what is counted.
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
            kind: Kind::$kind,
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
            "1 while rows can be relayed, as /readyz says",
            "0: Kafka or Postgres is away, or the relay is about to end";
        KAFKA_UP = Gauge "outbox_relay_kafka_up" [],
            "1 while Kafka answers",
            "0: nothing is claimed meanwhile";
        POSTGRES_UP = Gauge "outbox_relay_postgres_up" [],
            "1 while Postgres answers everybody in the relay who needs it",
            "0: nothing is relayed meanwhile";
        OLDEST_UNSENT = Gauge "outbox_relay_oldest_unsent_seconds" [],
            "Age of the oldest unsent row by the clock of the database, held topics included; measured every 5 s, less often when that takes long",
            "more than some seconds, or rising by a second each second: nothing moves";
        BACKLOG = Gauge "outbox_relay_backlog_rows" [],
            "Unsent rows, but for those of held topics: exact up to 10000, above that the span of their ids",
            "rising for minutes: more is inserted than relayed";
        MEASURED = Gauge "outbox_relay_measurement_age_seconds" [],
            "How long ago the age of the oldest unsent row and the backlog were measured",
            "more than some minutes: Postgres is away, or refuses to be measured, and those two say nothing";
        LATENCY = Histogram "outbox_relay_latency_seconds" [],
            "From the insert of the oldest event of a batch (the begin of its transaction) to the batch's confirmed COMMIT, by the clock of the database",
            "a high quantile far above its usual value";
        UNSETTLED = Gauge "outbox_relay_unsettled_rows" [],
            "Rows that Kafka has acknowledged and that are not recorded as sent yet",
            "above 0 for minutes: somebody keeps rows of the outbox locked, or settlements fail; a crash now sends them again";
        PROGRESS = Gauge "outbox_relay_progress_age_seconds" [],
            "How long ago the relay last looked for work; /livez fails at 60",
            "more than some seconds: a statement hangs, or the process does";
    }
    Fast {
        PUBLISHED = Counter "outbox_relay_published_total" [],
            "Rows that were settled as sent",
            "no increase while there is a backlog";
        RECOVERED = Counter "outbox_relay_recovered_total" [],
            "Published rows that were settled without sending them again, because Kafka had acknowledged them before",
            "a steady increase: settlements fail again and again";
        TOPIC_RECORDS = Counter "outbox_relay_topic_records_total" ["topic"],
            "Records that Kafka has acknowledged, by topic; the first 50 topics are named, all others count as `other`",
            "no increase for a topic that always has events";
        TOPIC_BYTES = Counter "outbox_relay_topic_bytes_total" ["topic"],
            "Size of the rows of acknowledged records, as Postgres sent them, by topic",
            "";
        BATCH_ROWS = Histogram "outbox_relay_batch_rows" [],
            "Rows in a batch",
            "";
        BATCH_SECONDS = Histogram "outbox_relay_batch_seconds" [],
            "From the claim of a batch to its confirmed COMMIT",
            "seconds; what is not in outbox_relay_publish_seconds is Postgres";
        PUBLISH_SECONDS = Histogram "outbox_relay_publish_seconds" [],
            "From the first row of a batch handed to the producer to the last acknowledgement",
            "seconds: Kafka is slow";
        WORKERS = Gauge "outbox_relay_workers" [],
            "Workers",
            "";
        WORKERS_BUSY = Gauge "outbox_relay_workers_busy" [],
            "Workers that are at a batch",
            "all of them, all the time: the relay is at its limit";
        LANES_IN_HAND = Gauge "outbox_relay_lanes_in_hand" [],
            "Lanes that workers have in hand, of 64",
            "";
        LANES_ELSEWHERE = Counter "outbox_relay_lanes_elsewhere_total" [],
            "Lanes that were asked for and that another relay had",
            "";
        CLAIMS = Counter "outbox_relay_claims_total" [],
            "Claims that got a lane",
            "";
        CLAIMS_EMPTY = Counter "outbox_relay_claims_empty_total" [],
            "Claims that got a lane and found no row, because another relay was quicker",
            "nearly as many as claims: too many relays";
        LOOKS = Counter "outbox_relay_looks_total" [],
            "Looks for lanes with unsent rows",
            "";
        LOOKS_EMPTY = Counter "outbox_relay_looks_empty_total" [],
            "Looks for lanes with unsent rows that saw nothing new",
            "";
    }
    Failed {
        HELD_TOPICS = Gauge "outbox_relay_held_topics" [],
            "Topics that cannot be written to, whose rows wait; status names them with the reason",
            "above 0";
        TOPIC_HELD = Gauge "outbox_relay_topic_held" ["topic" "reason"],
            "1 for each held topic, with the reason; at most 100 are named",
            "1";
        HOLDS = Counter "outbox_relay_holds_total" [],
            "Times that this relay found that a topic cannot be written to",
            "an increase, again and again: the topic comes and goes";
        BLOCKED_KEYS = Gauge "outbox_relay_blocked_keys" [],
            "Keys whose first event Kafka rejected under on_rejected = block-key, and whose events wait",
            "above 0: somebody has to decide";
        PAUSED = Gauge "outbox_relay_paused" ["scope"],
            "Pauses that operators have begun and not ended: of everything, of a topic, of a key; status names them",
            "above 0 for longer than anybody meant: events wait until somebody resumes";
        DEAD_LETTERS = Counter "outbox_relay_dead_letters_total" [],
            "Rows that were moved to the dead letters",
            "an increase: events did not reach their consumers";
        REJECTED = Counter "outbox_relay_rejected_total" ["reason"],
            "Rows that can never become a record, dead letters and blocked ones, by reason",
            "an increase";
        SESSIONS_FAILED = Counter "outbox_relay_sessions_failed_total" [],
            "Producers that were replaced after a failure",
            "an increase for minutes: the failure lasts";
        KAFKA_FAILURES = Counter "outbox_relay_kafka_failures_total" ["reason"],
            "Producers that were replaced after a failure, by its reason as in docs/error-codes.md",
            "an increase for minutes";
        POSTGRES_FAULTS = Counter "outbox_relay_postgres_faults_total" [],
            "Claims that a fault of Postgres ended; their rows are claimed again",
            "an increase for minutes";
        POSTGRES_CONNECTIONS = Counter "outbox_relay_postgres_connections_total" [],
            "Connections to Postgres that were made, reconnects included",
            "a steady increase: connections break";
        REAPER_FAULTS = Counter "outbox_relay_reaper_faults_total" [],
            "Batches of the reaper that failed",
            "an increase for hours: the table grows";
        UNFINISHED = Gauge "outbox_relay_idempotency_unfinished_requests" [],
            "Requests with an idempotency key that were begun longer than idempotency_retention ago and are not finished, as the \
             reaper found them last; at most 1000 are counted",
            "more than 0: nobody completes them";
        REQUEST_ERRORS = Counter "outbox_relay_kafka_request_errors_total" [],
            "Requests that could not be sent to a broker, and answers that could not be read",
            "an increase for minutes";
        REQUEST_RETRIES = Counter "outbox_relay_kafka_request_retries_total" [],
            "Requests that the Kafka client sent again",
            "an increase for minutes: leaders move, or brokers are overloaded";
        REQUEST_TIMEOUTS = Counter "outbox_relay_kafka_request_timeouts_total" [],
            "Requests to brokers without an answer in time",
            "an increase";
        DISCONNECTS = Counter "outbox_relay_kafka_disconnects_total" [],
            "Connections to brokers that ended; idle ones are closed by brokers after some minutes",
            "an increase while rows flow";
    }
    Costs {
        TRANSACTIONS = Counter "outbox_relay_postgres_transactions_total" [],
            "Transactions that were begun in Postgres, those that only look included",
            "more than about 100 a second for each relay while nothing is inserted";
        REAPED = Counter "outbox_relay_reaped_total" [],
            "Rows that were deleted because they were sent longer ago than the retention",
            "no increase for hours while rows are sent: the table grows";
        REAPER_BATCHES = Counter "outbox_relay_reaper_batches_total" [],
            "Batches of the reaper, those of nothing to do included; of several relays one reaps at a time",
            "";
        REQUESTS = Counter "outbox_relay_kafka_requests_total" [],
            "Requests to brokers, those sent again included",
            "";
        RESPONSES = Counter "outbox_relay_kafka_responses_total" [],
            "Answers of brokers whose time was taken",
            "";
        ROUND_TRIPS = Counter "outbox_relay_kafka_round_trip_seconds_total" [],
            "Time from requests to brokers to their answers, added up; divided by outbox_relay_kafka_responses_total it is the mean round trip, which for records includes replication",
            "";
        BROKER_SECONDS = Gauge "outbox_relay_kafka_broker_round_trip_seconds" ["broker"],
            "Time that 99 of 100 answers of a broker took at most when there last were any, of the slowest producer; at most 50 brokers are named",
            "one broker far above the others";
        IN_FLIGHT = Gauge "outbox_relay_kafka_requests_in_flight" [],
            "Requests that wait for the answer of a broker",
            "";
        WAITING = Gauge "outbox_relay_kafka_requests_waiting" [],
            "Requests that wait to be sent to a broker",
            "above 0 for minutes: a broker or the network does not keep up";
        QUEUED = Gauge "outbox_relay_kafka_queued_records" [],
            "Records that were handed to the Kafka client and are not acknowledged",
            "";
        QUEUED_BYTES = Gauge "outbox_relay_kafka_queued_bytes" [],
            "Size of the records that were handed to the Kafka client and are not acknowledged",
            "";
        SENT_BYTES = Counter "outbox_relay_kafka_sent_bytes_total" [],
            "Bytes sent to brokers, compressed",
            "";
        RECEIVED_BYTES = Counter "outbox_relay_kafka_received_bytes_total" [],
            "Bytes received from brokers",
            "";
        CONNECTS = Counter "outbox_relay_kafka_connects_total" [],
            "Attempts to connect to a broker",
            "a steady increase: connections break, or cannot be made";
        CPU = Counter "process_cpu_seconds_total" [],
            "CPU time of the process",
            "an increase of nearly a second each second: the relay is at its limit";
        RESIDENT = Gauge "process_resident_memory_bytes" [],
            "Resident memory of the process",
            "rising for hours";
        THREADS = Gauge "process_threads" [],
            "Threads of the process",
            "";
        OPEN_FDS = Gauge "process_open_fds" [],
            "Open file descriptors",
            "near process_max_fds";
        MAX_FDS = Gauge "process_max_fds" [],
            "The most file descriptors that may be open",
            "";
        START_TIME = Gauge "process_start_time_seconds" [],
            "When the process began, in seconds since 1970",
            "changes: it was restarted";
        BUILD = Info "outbox_relay_build_info" ["version"],
            "The version that runs",
            "several versions side by side for longer than a deployment takes";
    }
}
