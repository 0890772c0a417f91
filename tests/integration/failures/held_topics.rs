//! A topic that cannot be written to delays only its own rows, and they are published once the topic is available.

use outbox_relay::config;
use postgres::columns::PayloadType;
use postgres::connection::pool::Database;
use postgres::cycle::holds::PostgresHolds;
use postgres::cycle::statements::Statements;
use relay::health::stats::Stats;
use relay::holds::{Failed, Holds};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::consumer::{self, Record};
use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::relay::RelayProcess;
use crate::support::rows::{self, Filling};
use crate::support::topics;
use crate::support::wait::{STALLED, assert_within, wait_until};

/// A hold is probed at least every 10 s, and the relay checks every 0.5 s whether one is due.
const RESUMED_WITHIN: Duration = Duration::from_secs(15);

/// Held topics are probed in rounds. Probing these one after the other would take more than a minute.
const MANY: usize = 240;
const RELEASED_WITHIN: Duration = Duration::from_secs(5);

async fn assert_held(outbox: &Outbox, kinds: &[String]) {
    let mut expected: Vec<_> =
        kinds.iter().map(|kind| (outbox.topic(kind), "unknown-topic".to_owned())).collect();
    expected.sort();
    assert_eq!(outbox.holds().await, expected);
    assert_eq!(outbox.dead_letters().await, 0);
}

/// The rows of the missing topics come first, then 100,000 rows of another topic.
async fn behind_missing_topics(test: &str, missing: &[String]) -> (Outbox, RelayProcess) {
    let mut outbox = Outbox::create(test, 12).await;
    for kind in missing {
        rows::insert(&outbox, kind, 200, 0..2_000, Filling::Nothing).await;
    }
    rows::insert(&outbox, "order", 1_000, 0..100_000, Filling::Nothing).await;
    let relay = outbox.start_relay().await;
    let flowed = outbox.wait_until_sent("order", STALLED).await;
    // With a timeout for each missing topic, it would take minutes.
    assert_within("100,000 rows behind missing topics", flowed, Duration::from_secs(30));
    assert_held(&outbox, missing).await;
    for kind in missing {
        assert_eq!(outbox.unsent_of(kind).await, 2_000);
    }

    // More rows of both kinds are inserted while the topics are held.
    rows::insert(&outbox, "order", 1_000, 100_000..101_000, Filling::Nothing).await;
    for kind in missing {
        rows::insert(&outbox, kind, 200, 2_000..2_100, Filling::Nothing).await;
    }
    outbox.wait_until_sent("order", STALLED).await;
    for kind in missing {
        outbox.create_topic(kind, 3).await;
    }
    let begun = Instant::now();
    wait_until("no topic is held", STALLED, async || {
        outbox.count("SELECT count(*) FROM app.outbox_hold").await == 0
    })
    .await;
    for kind in missing {
        outbox.wait_until_sent(kind, STALLED).await;
    }
    assert_within("rows arrived after their topics were created", begun.elapsed(), RESUMED_WITHIN);
    assert_eq!(outbox.dead_letters().await, 0);
    (outbox, relay)
}

#[tokio::test]
async fn missing_topic_before_100_000_rows_delays_only_its_own_rows() {
    let (outbox, mut relay) = behind_missing_topics("missing", &["missing".to_owned()]).await;
    assert!(relay.stop().await.success());
    println!("{}", outbox.check().await.assert_exact());
    outbox.drop().await;
}

#[tokio::test]
async fn twenty_missing_topics_delay_only_their_own_rows() {
    let missing: Vec<String> = (0..20).map(|number| format!("missing-{number}")).collect();
    let (outbox, mut relay) = behind_missing_topics("missing20", &missing).await;
    assert!(relay.stop().await.success());
    println!("{}", outbox.check().await.assert_exact());
    outbox.drop().await;
}

/// `HELD_TOPICS` sets a different number of topics, for measurements.
#[tokio::test]
async fn many_held_topics_are_released_together_after_their_creation() {
    let topics = std::env::var("HELD_TOPICS").map_or(MANY, |number| number.parse().unwrap());
    let mut outbox = Outbox::create("released", 1).await;
    let kinds: Vec<String> = (0..topics).map(|number| format!("missing-{number}")).collect();
    for kind in &kinds {
        rows::insert(&outbox, kind, 2, 0..2, Filling::Nothing).await;
    }
    let mut relay = outbox.start_relay().await;
    let held = "SELECT count(*) FROM app.outbox_hold";
    wait_until("all topics are held", STALLED, async || outbox.count(held).await == topics as i64).await;
    let probed = "SELECT min(probes)::bigint FROM app.outbox_hold";
    wait_until("all topics were probed often", STALLED, async || outbox.count(probed).await >= 4).await;
    let names: Vec<String> = kinds.iter().map(|kind| outbox.topic(kind)).collect();
    outbox.cluster.create_many(&names).await;
    let begun = Instant::now();
    wait_until("no topic is held", STALLED, async || outbox.count(held).await == 0).await;
    let released = begun.elapsed();
    kinds.iter().for_each(|kind| outbox.add_topic(kind));
    outbox.wait_until_drained(STALLED).await;
    assert_within(
        &format!("{topics} topics were released after they were created"),
        released,
        RELEASED_WITHIN,
    );
    assert!(relay.stop().await.success());
    println!("{}", outbox.check().await.assert_exact());
    outbox.cluster.delete_many(&names).await;
    outbox.drop_database().await;
}

/// Without the trigger, a new key does not change the version. A count that includes the key would therefore be an
/// unnecessary one.
#[tokio::test]
async fn blocked_keys_are_counted_only_if_the_set_of_holds_has_changed() {
    const BLOCK: &str = "INSERT INTO app.outbox_blocked_key
        (aggregate_type, aggregate_id, outbox_id, event_id, topic, reason, error)
        VALUES ('order', $1, $2, gen_random_uuid(), 'events.order', 'invalid-record', 'for the test')";
    let outbox = Outbox::without_topics("counted").await;
    let mut holds = holds(&outbox);
    let block = async |key: &str, id: i64| _ = outbox.client.execute(BLOCK, &[&key, &id]).await.unwrap();
    block("a", 1).await;
    assert_eq!(holds.count().await.unwrap().keys, 1);
    run(&outbox.client, "ALTER TABLE app.outbox_blocked_key DISABLE TRIGGER hold_changed").await;
    block("b", 2).await;
    assert_eq!(holds.count().await.unwrap().keys, 1, "the version has not changed");
    run(&outbox.client, "ALTER TABLE app.outbox_blocked_key ENABLE TRIGGER hold_changed").await;
    block("c", 3).await;
    assert_eq!(holds.count().await.unwrap().keys, 3);
    outbox.drop().await;
}

/// The probes of a topic that rejects everything depend on its reason. Any other topic may have another cause by now.
#[tokio::test]
async fn a_topic_that_is_stuck_has_this_reason_unless_it_rejects_everything() {
    let outbox = Outbox::without_topics("stuck_reason").await;
    run(
        &outbox.client,
        "INSERT INTO app.outbox_hold (topic, reason, error)
         VALUES ('a', 'unknown-topic', ''), ('b', 'rejects-everything', ''), ('c', 'unknown-topic', '')",
    )
    .await;
    let mut holds = holds(&outbox);
    let failed = |topic, reason| Failed { topic, reason, error: "no answer" };
    holds
        .postpone(&[failed("a", Some("stuck")), failed("b", Some("stuck")), failed("c", None)])
        .await
        .unwrap();
    let rows = outbox
        .client
        .query("SELECT reason FROM app.outbox_hold WHERE error = 'no answer' ORDER BY topic", &[]);
    let reasons: Vec<String> = rows.await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(reasons, ["stuck", "rejects-everything", "unknown-topic"]);
    outbox.drop().await;
}

fn holds(outbox: &Outbox) -> PostgresHolds {
    let settings = [
        ("POSTGRES__URL", outbox.relay_url()),
        ("KAFKA__BOOTSTRAP_SERVERS", "localhost:9092".to_owned()),
        ("OUTBOX__TABLE", "app.outbox".to_owned()),
    ];
    let settings = settings.map(|(name, value)| (format!("OUTBOX_RELAY__{name}"), value));
    let config = config::load(None, settings.into_iter()).unwrap();
    let (table, sent) = (&config.outbox.table, config.outbox.on_sent);
    let statements = Statements::new(table, PayloadType::Json, sent, config.outbox.topic.clone(), 1_000_000);
    let database = Database::new(&config.postgres, 1, Arc::new(Stats::new())).unwrap();
    PostgresHolds::new(database, Rc::new(statements))
}

fn seq(record: &Record) -> i64 {
    let value = String::from_utf8(record.value.clone().unwrap()).unwrap();
    let value: serde_json::Value = serde_json::from_str(&value).unwrap();
    value["seq"].as_i64().unwrap()
}

/// Records that were stored before the topic was deleted are gone. The remaining ones must have no gap: for each key,
/// every row from some row on, and at the latest from the first row that was inserted after the deletion.
#[tokio::test]
async fn topic_deleted_under_load_and_created_again_loses_nothing_inserted_after() {
    const KEYS: i64 = 50;
    let mut outbox = Outbox::create("deleted", 3).await;
    outbox.create_topic("other", 3).await;
    let mut relay = outbox.start_relay().await;
    let mut inserted = 0;
    let mut deleted_at = 0;
    for round in 0..120 {
        rows::insert(&outbox, "order", KEYS, inserted..inserted + 100, Filling::Nothing).await;
        rows::insert(&outbox, "other", KEYS, inserted..inserted + 100, Filling::Nothing).await;
        inserted += 100;
        if round == 40 {
            wait_until("rows are published", STALLED, async || {
                outbox.count("SELECT count(*) FROM app.outbox WHERE sent_at IS NOT NULL").await > 0
            })
            .await;
            topics::delete(&outbox.topic("order")).await;
            deleted_at = inserted;
        }
        if round == 80 {
            wait_until("the deleted topic is held", STALLED, async || {
                outbox.count("SELECT count(*) FROM app.outbox_hold").await == 1
            })
            .await;
            outbox.wait_until_sent("other", STALLED).await;
            topics::create(&outbox.topic("order"), 3, &[]).await;
        }
    }
    outbox.wait_until_sent("other", STALLED).await;
    let resumed = outbox.wait_until_sent("order", STALLED).await;
    println!("drained {resumed:?} after the last insert");
    assert!(relay.stop().await.success());

    assert_eq!(outbox.dead_letters().await, 0);
    let mut firsts: HashMap<Vec<u8>, Vec<i64>> = HashMap::new();
    for record in consumer::read_all(&[outbox.topic("order")]).await {
        let seqs = firsts.entry(record.key.clone().unwrap()).or_default();
        if !seqs.contains(&seq(&record)) {
            seqs.push(seq(&record));
        }
    }
    assert_eq!(firsts.len() as i64, KEYS);
    for (key, seqs) in firsts {
        let key = String::from_utf8(key).unwrap();
        assert!(seqs[0] < deleted_at + KEYS, "{key} begins with {}, deleted at {deleted_at}", seqs[0]);
        let whole: Vec<i64> = (seqs[0]..inserted).step_by(KEYS as usize).collect();
        assert_eq!(seqs, whole, "{key}");
    }
    let report = outbox.check_of("other").await;
    println!("the other topic: {}", report.assert_sound());
    outbox.drop().await;
}
