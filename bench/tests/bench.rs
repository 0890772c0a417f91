//! `outbox-bench` as a user runs it: its output, what it touches, and what it leaves behind. The tests do not check
//! figures, because the speed of a test machine is not meaningful.

use rustix::process::Signal;
use serde_json::Value;

use outbox_bench::Shape;
use outbox_bench::place::Place;
use outbox_bench::settings::Settings;
use rdkafka::consumer::{BaseConsumer, Consumer};

use crate::support::command::{Ended, relay_binary};
use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::relay::{Relay, RelayProcess};
use crate::support::wait::{STALLED, wait_until};

/// The measured relays.
const RELAYS: &str = "SELECT count(*) FROM pg_stat_activity
                      WHERE datname = current_database() AND application_name = 'outbox-bench relay'";

/// Small batches, so that few rows form many batches. Runs as the superuser, because it creates a schema.
fn configured(outbox: &Outbox) -> Relay {
    let relay = outbox.relay().with_program(env!("CARGO_BIN_EXE_outbox-bench"));
    let relay = relay.set("postgres", "url", outbox.database.url());
    relay.set("relay", "batch_size", 200).set("log", "level", "info")
}

async fn bench(relay: Relay, arguments: &'static [&'static str]) -> Ended {
    tokio::task::spawn_blocking(move || relay.command(arguments)).await.unwrap()
}

fn report(ended: &Ended) -> Value {
    let stdout = ended.succeeds();
    assert_eq!(stdout.lines().count(), 1, "{ended}");
    serde_json::from_str(stdout).unwrap()
}

/// Checks that everything of a drain arrived.
#[track_caller]
fn assert_complete(measured: &Value, rows: u64) {
    let verdict = &measured["verdict"];
    assert_eq!((&verdict["committed"], &verdict["arrived"]), (&rows.into(), &rows.into()), "{measured}");
    for wrong in ["lost", "duplicates", "reordered", "foreign"] {
        assert_eq!(verdict[wrong], 0, "{measured}");
    }
}

async fn schemas(outbox: &Outbox) -> Vec<String> {
    let sql = "SELECT nspname::text FROM pg_namespace WHERE starts_with(nspname, 'outbox_bench_') ORDER BY 1";
    outbox.client.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

/// Scratch topics, whose names begin like those of this outbox.
fn scratch_topics(outbox: &Outbox) -> Vec<String> {
    let client: BaseConsumer = outbox.cluster.client().create().unwrap();
    let metadata = client.fetch_metadata(None, STALLED).unwrap();
    let names = metadata.topics().iter().map(|topic| topic.name().to_owned());
    names.filter(|name| name.starts_with(&outbox.topic("")) && !outbox.topics().contains(name)).collect()
}

async fn assert_nothing_is_left(outbox: &Outbox) {
    assert_eq!(schemas(outbox).await, [""; 0]);
    wait_until("no scratch topic is left", STALLED, async || scratch_topics(outbox).is_empty()).await;
    wait_until("no relay is left", STALLED, async || outbox.count(RELAYS).await == 0).await;
}

/// A run in the middle of a long drain.
async fn during_a_drain(outbox: &Outbox) -> RelayProcess {
    let mut running = configured(outbox).spawn(&["--only", "drain", "--rows", "300000"]);
    running.wait_for_log("drain (plain, mark)").await;
    wait_until("a relay is running", STALLED, async || outbox.count(RELAYS).await > 0).await;
    running
}

#[tokio::test]
async fn every_part_is_reported_every_row_arrives_and_nothing_is_left_behind() {
    let outbox = Outbox::create("bench", 1).await;
    let ended = bench(configured(&outbox), &["--rows", "2000", "--seconds", "1", "--json"]).await;
    let report = report(&ended);
    assert_eq!(report["format"], 1, "{report}");
    let drains = report["drains"].as_array().unwrap();
    let loads: Vec<_> = drains
        .iter()
        .map(|drain| (drain["load"].as_str().unwrap(), drain["on_sent"].as_str().unwrap()))
        .collect();
    let wanted = [
        ("plain", "mark"),
        ("plain", "delete"),
        ("held-snapshot", "mark"),
        ("hot-key-100", "mark"),
        ("hot-key-50", "mark"),
    ];
    assert_eq!(loads, wanted);
    for drain in drains {
        assert_complete(drain, 2_000);
        assert_eq!(drain["usage"][0]["party"], "relay", "{drain}");
        assert!(drain["rows_per_second"].as_f64().unwrap() > 0.0, "{drain}");
        assert!(drain["batches"]["count"].as_u64().unwrap() >= 10, "{drain}");
    }
    for flow in report["flows"].as_array().unwrap() {
        assert_complete(flow, flow["verdict"]["committed"].as_u64().filter(|rows| *rows > 0).unwrap());
    }
    let steady = report["steady"].as_array().unwrap();
    for steady in steady {
        assert_complete(steady, steady["verdict"]["committed"].as_u64().unwrap());
        assert!(steady["latency"]["count"].as_u64().unwrap() > 0, "{steady}");
    }
    let counts = (report["flows"].as_array().unwrap().len(), steady.len());
    assert_eq!(counts, (2, 4), "{report}");
    for limit in ["claim_and_mark", "claim_and_delete", "produce"] {
        assert!(report["limits"][limit]["rows_per_second"].as_f64().unwrap() > 0.0, "{report}");
    }
    assert_eq!(report["idle"]["usage"][0]["party"], "relay", "{report}");
    assert!(!report["findings"].as_array().unwrap().is_empty(), "{report}");
    assert_nothing_is_left(&outbox).await;
    outbox.drop().await;
}

#[tokio::test]
async fn table_shows_the_same_results() {
    let outbox = Outbox::create("bench_table", 1).await;
    let ended = bench(configured(&outbox), &["--rows", "1000", "--only", "drain", "--payload", "10"]).await;
    let shown = ended.succeeds();
    for text in ["1,000 rows of 10 bytes", "drain, mark", "drain, delete", "limit of the drain: "] {
        assert!(shown.contains(text), "{text:?} is missing in {shown}");
    }
    let summary = "verified: committed 2,000, arrived 2,000, lost 0, duplicates 0, reordered 0, foreign 0";
    assert!(shown.contains(summary), "{shown}");
    assert_nothing_is_left(&outbox).await;
    outbox.drop().await;
}

/// The role has no privileges on the schema of the configured outbox, so it cannot read or write there. The names of its columns do not
/// apply to the scratch outbox.
#[tokio::test]
async fn configured_outbox_is_neither_read_nor_written() {
    let outbox = Outbox::create("bench_untouched", 1).await;
    let insert = "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload)
                  SELECT 'order', n::text, 'Waits', '{}' FROM generate_series(1, 100) AS n";
    run(&outbox.client, insert).await;
    let (role, _) = outbox.database.connect_as_new_role().await;
    let grant = format!("GRANT CREATE ON DATABASE {} TO {role}", outbox.database.name());
    run(&outbox.client, &grant).await;
    let url = outbox.database.url().replacen("postgres@", &format!("{role}:test@"), 1);
    let relay =
        configured(&outbox).set("postgres", "url", url).set_inner("outbox", "columns", "payload", "body");
    let ended = bench(relay, &["--rows", "1000", "--only", "drain", "--json"]).await;
    for drain in report(&ended)["drains"].as_array().unwrap() {
        assert_complete(drain, 1_000);
    }
    assert_eq!(outbox.unsent().await, 100);
    assert_eq!(outbox.cluster.stored(&outbox.topic("order")), 0);
    assert_nothing_is_left(&outbox).await;
    run(&outbox.client, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
    outbox.drop().await;
}

#[tokio::test]
async fn ctrl_c_cleans_up_and_does_not_affect_another_run() {
    let outbox = Outbox::create("bench_interrupted", 1).await;
    let mut running = during_a_drain(&outbox).await;
    let other = bench(configured(&outbox), &["--only", "idle", "--seconds", "1", "--json"]).await;
    assert!(report(&other)["idle"].is_object());
    assert!(!other.stderr.contains("left by a killed run"), "{other}");
    assert_eq!(schemas(&outbox).await.len(), 1, "the schema of the active run");
    running.signal(Signal::INT);
    assert_eq!(running.ended().await.code(), Some(1), "{}", running.log());
    for said in ["removed the schema outbox_bench_", "error: interrupted"] {
        assert!(running.log().contains(said), "{said:?} is missing in {}", running.log());
    }
    assert_nothing_is_left(&outbox).await;
    outbox.drop().await;
}

#[tokio::test]
async fn next_run_removes_what_a_killed_run_left_and_nothing_else() {
    let outbox = Outbox::create("bench_killed", 1).await;
    let foreign = "CREATE SCHEMA outbox_bench_00000000;
                   CREATE SCHEMA outbox_bench_mine;
                   COMMENT ON SCHEMA outbox_bench_mine IS 'made by `outbox-bench`, which also drops it'";
    run(&outbox.client, foreign).await;
    // Its tables could be views that call functions.
    let (role, _) = outbox.database.connect_as_new_role().await;
    let of_another_role = format!(
        "CREATE SCHEMA outbox_bench_11111111 AUTHORIZATION {role};
         COMMENT ON SCHEMA outbox_bench_11111111 IS 'made by `outbox-bench`, which also drops it'"
    );
    run(&outbox.client, &of_another_role).await;
    let foreign = ["outbox_bench_00000000", "outbox_bench_11111111", "outbox_bench_mine"];
    let mut running = during_a_drain(&outbox).await;
    running.kill();
    wait_until("the relay has ended by itself", STALLED, async || outbox.count(RELAYS).await == 0).await;
    let left = schemas(&outbox).await;
    let left = left.iter().find(|name| !foreign.contains(&name.as_str()));
    let left = left.unwrap();
    assert!(!scratch_topics(&outbox).is_empty());

    let next = bench(configured(&outbox), &["--only", "idle", "--seconds", "1", "--json"]).await;
    next.succeeds();
    assert!(
        next.stderr.contains(&format!("removing the schema {left} and 1 topic, left by a killed run")),
        "{next}"
    );
    assert_eq!(schemas(&outbox).await, foreign);
    run(&outbox.client, &format!("DROP SCHEMA {}", foreign.join(", "))).await;
    assert_nothing_is_left(&outbox).await;
    run(&outbox.client, &format!("DROP ROLE {role}")).await;
    outbox.drop().await;
}

#[tokio::test]
async fn missing_privilege_and_missing_broker_are_reported_before_anything_is_created() {
    let outbox = Outbox::create("bench_refused", 1).await;
    let (role, _) = outbox.database.connect_as_new_role().await;
    let url = outbox.database.url().replacen("postgres@", &format!("{role}:7Q4zMARK@"), 1);
    let denied = bench(configured(&outbox).set("postgres", "url", url), &["--only", "drain"]).await;
    denied.fails(78, &["GRANT CREATE ON DATABASE"]);
    assert!(!format!("{}{}", denied.stdout, denied.stderr).contains("7Q4zMARK"), "{denied}");
    run(&outbox.client, "CREATE PUBLICATION everything FOR ALL TABLES").await;
    let published = bench(configured(&outbox), &["--only", "drain"]).await;
    published.fails(78, &["publication everything", "another database"]);
    run(&outbox.client, "DROP PUBLICATION everything").await;
    let unreachable = configured(&outbox).set("kafka", "bootstrap_servers", "127.0.0.1:1");
    bench(unreachable, &["--only", "drain"]).await.fails(69, &["listing the topics"]);
    assert_nothing_is_left(&outbox).await;
    run(&outbox.client, &format!("DROP ROLE {role}")).await;
    outbox.drop().await;
}

#[tokio::test]
async fn rows_have_the_requested_bytes_keys_and_topics() {
    let outbox = Outbox::create("bench_rows", 1).await;
    let settings = Settings::new(relay_binary(), None).with("postgres", "url", outbox.database.url()).with(
        "kafka",
        "bootstrap_servers",
        outbox.cluster.bootstrap.clone(),
    );
    let place = Place::create(settings).await.unwrap();
    let in_transaction = "SELECT count(*) FROM pg_stat_activity
                          WHERE datname = current_database() AND state = 'idle in transaction'";
    assert_eq!(outbox.count(in_transaction).await, 1, "one session holds the lock of the schema");
    let holding_vacuum_back = format!("{in_transaction} AND backend_xmin IS NOT NULL");
    assert_eq!(outbox.count(&holding_vacuum_back).await, 0, "it would change what is measured");
    for (payload_bytes, topics, hot_share) in
        [(10, 1, 0.0), (54, 1, 0.5), (55, 3, 0.0), (246, 7, 0.0), (5_000, 1, 1.0)]
    {
        let shape = Shape { rows: 300, keys: 70, payload_bytes, topics, hot_share };
        place.fill(&shape).await.unwrap();
        let about = format!(
            "SELECT count(*), min(octet_length(payload::text)), max(octet_length(payload::text)),
                    count(DISTINCT payload::text), count(DISTINCT aggregate_type),
                    count(*) FILTER (WHERE aggregate_id = 'order-0'),
                    max(substr(aggregate_id, 7)::int)
             FROM {}",
            place.table().quoted()
        );
        let row = outbox.client.query_one(&about, &[]).await.unwrap();
        let (rows, least, most): (i64, i32, i32) = (row.get(0), row.get(1), row.get(2));
        assert_eq!((rows, least, most), (300, payload_bytes as i32, payload_bytes as i32));
        assert_eq!(row.get::<_, i64>(3), 300, "each payload has its own number");
        assert_eq!(row.get::<_, i64>(4), topics as i64);
        let hot: i64 = row.get(5);
        match hot_share {
            0.0 => assert!(hot < 40, "{hot} of 300 rows of 70 keys have the first key"),
            1.0 => assert_eq!(hot, 300),
            _ => assert!((90..210).contains(&hot), "{hot} of 300 rows have the hot key"),
        }
        assert!(row.get::<_, i32>(6) < 70);
    }
    place.remove().await.unwrap();
    assert_nothing_is_left(&outbox).await;
    outbox.drop().await;
}
