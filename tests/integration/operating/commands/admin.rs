//! The admin endpoint of a running relay.

use super::{Ended, Setup, binary, nowhere};
use crate::support::kafka_proxy::Proxy;
use crate::support::topics;
use outbox_relay::admin::metrics::CATALOGUE;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(30);

/// A running relay, killed at the end of the test.
pub struct Running {
    child: Child,
    address: String,
    lines: Receiver<String>,
}

impl Running {
    pub fn start(setup: &Setup) -> Running {
        let mut command = setup.command(&["run"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (line, lines) = mpsc::channel();
        std::thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|text| line.send(text)));
        let mut relay = Running { child, address: String::new(), lines };
        relay.address = relay.find_address();
        relay
    }

    fn find_address(&self) -> String {
        let mut log = String::new();
        loop {
            let Ok(text) = self.lines.recv_timeout(PATIENCE) else {
                panic!("no admin endpoint in the log:\n{log}")
            };
            if let Some((_, rest)) = text.split_once("serving metrics and health checks at http://") {
                return rest.split('/').next().unwrap_or_default().to_owned();
            }
            log.push_str(&text);
            log.push('\n');
        }
    }

    /// The status, and the whole response.
    async fn ask(&self, request: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        stream.write_all(format!("{request} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status.unwrap_or_else(|| panic!("{request}: {answer:?}")), answer)
    }

    pub async fn until(&self, request: &str, wanted: impl Fn(u16, &str) -> bool) -> String {
        let begun = Instant::now();
        loop {
            let (status, answer) = self.ask(request).await;
            if wanted(status, &answer) {
                return answer;
            }
            assert!(begun.elapsed() < PATIENCE, "{request}: {answer}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

#[tokio::test]
async fn metrics_show_the_whole_catalogue_and_are_counted() {
    let setup = Setup::migrated("metrics").await;
    let relay = Running::start(&setup);
    relay.until("GET /readyz", |status, _| status == 200).await;
    // A topic name that Kafka does not allow is refused without a broker.
    setup
        .sql(
            "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type) VALUES ('a b', '1', 'X');
             INSERT INTO app.outbox_hold (topic, reason, error, probe_at) VALUES ('t', 'r', 'e', now() + interval '1 hour')",
        )
        .await;
    let text = relay
        .until("GET /metrics", |_, text| {
            text.contains("\noutbox_relay_topic_held{")
                && text.contains("\noutbox_relay_dead_letters_total 1\n")
                && text.contains("\noutbox_relay_batch_seconds_count 1\n")
        })
        .await;
    // Metrics with labels appear with their first value. tests/integration/project/monitoring/scrape.rs waits for them.
    for metric in CATALOGUE.iter().filter(|metric| metric.labels.is_empty()) {
        let shown = text.lines().any(|line| line.starts_with(metric.name));
        assert!(shown, "{} is missing in {text}", metric.name);
    }
    assert!(text.contains("content-type: application/openmetrics-text"), "{text}");
    assert!(text.contains("\noutbox_relay_batch_rows_sum 1.0\n"), "{text}");
    assert!(
        text.contains("\noutbox_relay_kafka_up 1\n") && text.contains("\noutbox_relay_postgres_up 1\n"),
        "{text}"
    );
    assert_eq!(relay.ask("HEAD /metrics").await.0, 200);
    assert_eq!(relay.ask("POST /metrics").await.0, 405);
    assert_eq!(relay.ask("GET /config").await.0, 404);
    drop(relay);
    setup.drop(&[]).await;
}

#[tokio::test]
async fn published_events_are_counted_and_timed() {
    let setup = Setup::migrated("published").await;
    let kind = format!("counted_{}", std::process::id());
    topics::create(&format!("events.{kind}"), 3, &[]).await;
    let relay = Running::start(&setup);
    setup
        .sql(&format!(
            "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type)
             SELECT '{kind}', i::text, 'X' FROM generate_series(1, 30) AS i"
        ))
        .await;
    let counted = |_, text: &str| text.contains("\noutbox_relay_published_total 30\n");
    let text = relay.until("GET /metrics", counted).await;
    assert!(text.contains("\noutbox_relay_recovered_total 0\n"), "{text}");
    assert!(text.contains("\noutbox_relay_batch_rows_sum 30.0\n"), "{text}");
    assert!(!text.contains("\noutbox_relay_publish_seconds_count 0\n"), "{text}");
    assert_eq!(setup.number("SELECT count(*) FROM app.outbox WHERE sent_at IS NULL").await, 0);
    drop(relay);
    setup.drop(&[]).await;
}

#[tokio::test]
async fn without_kafka_a_relay_is_live_but_not_ready_and_shows_its_lag() {
    let setup = Setup::migrated("admin_no_kafka").await;
    let address = nowhere();
    setup.configure(&setup.database.url(), &address);
    setup
        .sql(
            "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, created_at)
             VALUES ('order', '1', 'X', now() - interval '1 hour')",
        )
        .await;
    let relay = Running::start(&setup);
    let answer =
        relay.until("GET /readyz", |status, answer| status == 503 && answer.contains("brokers-down")).await;
    assert!(
        answer.contains("Kafka: ") && answer.contains(&address) && !answer.contains("PostgreSQL: "),
        "{answer}"
    );
    assert_eq!(relay.ask("GET /livez").await.0, 200);
    let late = |_, text: &str| text.contains("\noutbox_relay_oldest_unsent_seconds 36");
    let text = relay.until("GET /metrics", late).await;
    assert!(text.contains("\noutbox_relay_kafka_up 0\n"), "{text}");
    drop(relay);
    setup.drop(&[]).await;
}

#[tokio::test]
async fn without_postgres_a_relay_is_live_but_not_ready() {
    let setup = Setup::empty("admin_no_postgres").await;
    let mut kafka = Proxy::closed();
    setup.configure(&format!("postgres://relay:hunter2@{}/app", nowhere()), &kafka.address());
    let relay = Running::start(&setup);
    let answer = relay.until("GET /readyz", |_, answer| answer.contains("connecting to PostgreSQL")).await;
    assert!(answer.starts_with("HTTP/1.1 503") && !answer.contains("hunter2"), "{answer}");
    assert_eq!(relay.ask("GET /livez").await.0, 200);
    relay.until("GET /readyz", |_, answer| answer.contains("brokers-down")).await;
    kafka.resume().await;
    let text = relay.until("GET /metrics", |_, text| text.contains("\noutbox_relay_kafka_up 1\n")).await;
    assert!(text.contains("\noutbox_relay_ready 0\n"), "{text}");
    drop(relay);
    setup.drop(&[]).await;
}

#[tokio::test]
async fn silent_clients_do_not_block_others_for_long() {
    let setup = Setup::migrated("admin_idle").await;
    let relay = Running::start(&setup);
    let mut idle = Vec::new();
    for _ in 0..40 {
        idle.push(TcpStream::connect(&relay.address).await.unwrap());
    }
    let (status, _) =
        tokio::time::timeout(PATIENCE, relay.ask("GET /livez")).await.expect("no response in time");
    assert_eq!(status, 200);
    drop((idle, relay));
    setup.drop(&[]).await;
}

#[tokio::test]
async fn port_in_use_is_a_startup_error() {
    let setup = Setup::migrated("admin_taken").await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    let mut command = binary(&["run", "--config"]);
    command.arg(setup.config()).env("OUTBOX_RELAY__ADMIN__LISTEN", &listen);
    Ended::of(&mut command).fails(1, &["[admin] listen", &listen, "in use", "Choose another"]);
    setup.drop(&[]).await;
}
