//! Logs contain no secret and no content, whatever fails and whatever the log level.

mod everywhere;

use postgres::access::grants::relay_grants;

use crate::support::consumer;
use crate::support::database::run;
use crate::support::outbox::Outbox;
use crate::support::relay::{Relay, RelayProcess};
use crate::support::wait::{STALLED, wait_until};

const PASSWORD: &str = "pass-7Q4zMARK";
const KAFKA_PASSWORD: &str = "kafka-7Q4zMARK";

fn assert_unmarked(relay: &RelayProcess) {
    let said = relay.log();
    assert!(said.len() > 100, "the log is nearly empty: {said}");
    assert_no_mark("logged", &said);
}

/// Searches for the middle of the mark, because bytes may be printed as a list of numbers or escaped.
#[track_caller]
fn assert_no_mark(what: &str, said: &str) {
    for mark in ["7Q4zMARK", "55, 81, 52, 122", "3751347a4d", "\\x37", "N1E0ek1BUks"] {
        if let Some(line) = said.lines().find(|line| line.contains(mark)) {
            panic!("{what}: {line}");
        }
    }
}

/// Causes every failure that can happen to a marked row.
async fn fail_in_every_way(outbox: &Outbox, role: &str, relay: Relay) -> RelayProcess {
    let insert = |kind: &str, headers: &str, payload: &str| {
        let columns = "aggregate_type, aggregate_id, event_type, headers, payload";
        format!("INSERT INTO app.outbox ({columns}) VALUES ('{kind}', 'k', 'x', {headers}, {payload});")
    };
    let marked = r#"'{"content": "payload-7Q4zMARK"}'"#;
    let mut relay = relay.start().await;
    run(&outbox.client, &insert("order", r#"'{"trace": "header-7Q4zMARK"}'"#, marked)).await;
    outbox.wait_until_drained(STALLED).await;
    // Rows that are refused by the relay, by the client library and by the broker, and a row that is held.
    let large = "to_json('payload-7Q4zMARK' || repeat('x', 1000000))";
    let bad_headers = r#"'{"trace": ["header-7Q4zMARK"]}'"#;
    let too_large_for_topic =
        "(SELECT to_json('7Q4zMARK' || string_agg(md5(n::text), '')) FROM generate_series(1, 2000) AS n)";
    for row in [
        insert("order", bad_headers, marked),
        insert("order", "NULL", large),
        insert("small", "NULL", too_large_for_topic),
        insert("missing", "NULL", marked),
    ] {
        run(&outbox.client, &row).await;
    }
    wait_until("there are three dead letters and a hold", STALLED, async || {
        outbox.count("SELECT count(*) FROM app.outbox_dead_letter").await == 3
            && outbox.count("SELECT count(*) FROM app.outbox_hold").await == 1
    })
    .await;

    // Messages of the server: DETAIL contains the row, and a missing privilege the statement.
    let faults = relay.log().matches("postgres unavailable").count();
    run(&outbox.client, "ALTER TABLE app.outbox ADD CONSTRAINT forbidden CHECK (sent_at IS NULL) NOT VALID")
        .await;
    run(&outbox.client, &insert("order", "NULL", marked)).await;
    wait_until("the constraint is logged", STALLED, async || {
        relay.log().contains("violates check constraint")
    })
    .await;
    run(&outbox.client, "ALTER TABLE app.outbox DROP CONSTRAINT forbidden").await;
    wait_until("the row is settled", STALLED, async || outbox.unsent().await == 1).await;
    run(&outbox.client, &format!("REVOKE ALL ON app.outbox FROM {role}")).await;
    run(&outbox.client, &insert("order", "NULL", marked)).await;
    wait_until("the missing privilege is logged", STALLED, async || {
        relay.log().contains("permission denied")
    })
    .await;
    run(&outbox.client, &relay_grants(&"app.outbox".parse().unwrap(), role)).await;
    wait_until("the row is settled", STALLED, async || outbox.unsent().await == 1).await;
    assert!(relay.log().matches("postgres unavailable").count() > faults);

    // No connection, and no new one.
    let end = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'");
    run(&outbox.client, &format!("ALTER ROLE {role} NOLOGIN")).await;
    run(&outbox.client, &end).await;
    wait_until("connecting fails", STALLED, async || relay.log().contains("not permitted to log in")).await;
    run(&outbox.client, &format!("ALTER ROLE {role} LOGIN")).await;
    run(&outbox.client, &insert("order", "NULL", marked)).await;
    wait_until("the row is settled", STALLED, async || outbox.unsent().await == 1).await;
    assert!(relay.stop().await.success());
    relay
}

#[tokio::test]
async fn logs_contain_no_password_and_no_payload() {
    for (level, format) in [("trace", "text"), ("debug", "json")] {
        let mut outbox = Outbox::create(&format!("secrets_{format}"), 1).await;
        outbox.create_topic_with("small", 1, &[("max.message.bytes", "20000")]).await;
        let (role, _) = outbox.database.connect_as_new_role().await;
        run(&outbox.client, &format!("ALTER ROLE {role} PASSWORD '{PASSWORD}'")).await;
        run(&outbox.client, &relay_grants(&"app.outbox".parse().unwrap(), &role)).await;
        let url = outbox.database.url().replace("postgres@", &format!("{role}:{PASSWORD}@"));
        let relay = || {
            let relay = outbox.relay().set("postgres", "url", url.clone());
            relay.set("log", "level", level).set("log", "format", format)
        };
        assert_unmarked(&fail_in_every_way(&outbox, &role, relay()).await);
        let records = consumer::read_all(&outbox.topics()).await;
        assert!(
            records
                .iter()
                .all(|record| String::from_utf8_lossy(record.value.as_ref().unwrap()).contains("7Q4zMARK"))
        );

        // First Kafka refuses the password, then PostgreSQL does.
        let sasl = |relay: Relay| {
            relay
                .set_kafka_property("security.protocol", "sasl_plaintext")
                .set_kafka_property("sasl.mechanism", "PLAIN")
                .set_kafka_property("sasl.username", "relay")
                .set_kafka_property("sasl.password", KAFKA_PASSWORD)
        };
        let mut refused = sasl(relay()).spawn(&["run", "--once"]);
        assert_eq!(refused.ended().await.code(), Some(69), "{}", refused.log());
        assert_unmarked(&refused);
        // An invalid configuration is reported without its secrets.
        let mut refused = sasl(relay()).set_kafka_property("acks", "1").spawn(&["run"]);
        assert_eq!(refused.ended().await.code(), Some(78), "{}", refused.log());
        assert_unmarked(&refused);
        let bad_url = url.replace("127.0.0.1:", "127.0.0.1:x");
        let mut refused = relay().set("postgres", "url", bad_url).spawn(&["run"]);
        assert_eq!(refused.ended().await.code(), Some(78), "{}", refused.log());
        assert_unmarked(&refused);
        run(&outbox.client, &format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
        outbox.drop().await;
    }
}
