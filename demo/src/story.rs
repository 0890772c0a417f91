//! What the demo says before and after the figures.

use super::ledger::{Figures, Latency};
use super::schema::SCHEMA;
use super::screen::{Screen, milliseconds};
use super::shop::WRITERS;
use outbox_bench::checker::Verdict;
use outbox_relay::cli::output::thousands;
use std::time::Duration;

/// What is going to be shown.
pub(super) fn begin(screen: &mut Screen, time: Duration) {
    screen.say(&format!(
        "{title}

A shop takes orders for {seconds} s, and tells Kafka about each of them.
  shop      {WRITERS} writers at once. Each changes an order and inserts the event that
            announces it in the same Postgres transaction: both, or neither.
  relay     The one that `outbox-relay run` starts. It moves committed events to
            Kafka, here a small broker inside of this process.
  consumer  Knows nothing of the relay. It reads all that Kafka has, and that is
            compared with what the writers committed.
No event may be lost, repeated, or out of order in its key. No event of a transaction
that was rolled back may arrive. All tables are in the schema {SCHEMA}, which is
made for this and dropped at the end.
",
        title = screen.bold("outbox-demo"),
        seconds = time.as_secs(),
    ));
}

/// What came of it.
pub(super) fn end(screen: &mut Screen, figures: &Figures, verdict: &Verdict, latency: Latency) {
    let Verdict { committed, arrived, lost, duplicates, reordered, foreign, altered } = verdict;
    // Exactly these words, for scripts.
    let summary = format!(
        "written {committed}, received {arrived}, lost {lost}, duplicates {duplicates}, reordered {reordered}"
    );
    let summary = if verdict.is_exact() { screen.green(&summary) } else { screen.red(&summary) };
    let from_others = match foreign {
        0 => "none of their events arrived".to_owned(),
        count => {
            screen.red(&format!("{} events arrived that were never committed", thousands(*count as usize)))
        }
    };
    let payloads = match altered {
        0 => "each with the topic, key and payload it was written with".to_owned(),
        count => screen.red(&format!("{} with another topic, key or payload", thousands(*count as usize))),
    };
    screen.say(&format!(
        "\n{summary}
  payloads  {payloads}
  rollbacks {rolled_back} orders were rolled back, {from_others}
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
  cp config.example.toml config.toml    # set [postgres] url, [kafka] bootstrap_servers
  target/release/outbox-relay migrate --config config.toml
  target/release/outbox-relay run --config config.toml
  psql YOUR_DATABASE -c \"INSERT INTO outbox
    (aggregate_type, aggregate_id, event_type, payload)
    VALUES ('order', '42', 'OrderPlaced', '{{}}')\"
The event arrives in the topic events.order, which has to exist.",
        title = screen.bold("Next, with your own database and broker:"),
    ));
}
