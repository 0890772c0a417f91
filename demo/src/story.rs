//! The texts of the demo before and after the figures.

use super::ledger::{Figures, Latency};
use super::schema::SCHEMA;
use super::screen::{Screen, milliseconds};
use super::shop::WRITERS;
use outbox_bench::checker::Verdict;
use outbox_relay::cli::output::thousands;
use std::net::SocketAddr;
use std::time::Duration;

/// Describes what the demo does, and where the status page of its relay is.
pub(super) fn begin(screen: &mut Screen, time: Duration, page: Option<SocketAddr>) {
    screen.say(&format!(
        "{title}

A shop takes orders for {seconds} s and publishes events about them to Kafka.
  shop      {WRITERS} concurrent writers. Each changes an order and inserts the event
            for the change in the same PostgreSQL transaction.
  relay     The same code as `outbox-relay run`. It publishes committed events to
            Kafka, here a mock broker in this process.
  consumer  Independent of the relay. It reads all records in Kafka, and the demo
            compares them with what the writers committed.
No event may be lost, duplicated, or out of order within its key. No event of a rolled
back transaction may arrive. All tables are in the schema {SCHEMA}, which is
created for the demo and dropped at the end.
",
        title = screen.bold("outbox-demo"),
        seconds = time.as_secs(),
    ));
    if let Some(page) = page {
        let address = screen.bold(&format!("http://{page}/"));
        screen.say(&format!("To watch the relay in a browser, open its status page: {address}\n"));
    }
}

/// Prints the result.
pub(super) fn end(screen: &mut Screen, figures: &Figures, verdict: &Verdict, latency: Latency) {
    let Verdict { committed, arrived, lost, duplicates, reordered, foreign, altered } = verdict;
    // Scripts rely on these exact words.
    let summary = format!(
        "written {committed}, received {arrived}, lost {lost}, duplicates {duplicates}, reordered {reordered}"
    );
    let summary = if verdict.is_exact() { screen.green(&summary) } else { screen.red(&summary) };
    let from_others = match foreign {
        0 => "none of their events arrived".to_owned(),
        1 => screen.red("1 event arrived that was never committed"),
        count => {
            screen.red(&format!("{} events arrived that were never committed", thousands(*count as usize)))
        }
    };
    let payloads = match altered {
        0 => "every event has the topic, key and payload it was written with".to_owned(),
        count => {
            screen.red(&format!("{} with a different topic, key or payload", thousands(*count as usize)))
        }
    };
    screen.say(&format!(
        "\n{summary}
  payloads  {payloads}
  rollbacks {rolled_back} orders were rolled back; {from_others}
  latency   p50 {p50}, p99 {p99} from COMMIT to the consumer",
        rolled_back = thousands(figures.rolled_back),
        p50 = milliseconds(latency.p50),
        p99 = milliseconds(latency.p99),
    ));
}

/// The next steps.
pub(super) fn next(screen: &mut Screen) {
    screen.say(&format!(
        "
{title}
  cargo build --release
  target/release/outbox-relay init --config config.toml --topic events.order
  target/release/outbox-relay run --config config.toml
  psql YOUR_DATABASE -c \"INSERT INTO outbox
    (aggregate_type, aggregate_id, event_type, payload)
    VALUES ('order', '42', 'OrderPlaced', '{{}}')\"
`init` asks for the servers, and creates the tables, the roles, the topic and config.toml. The event arrives in the topic events.order.",
        title = screen.bold("Next, with your own database and broker:"),
    ));
}
