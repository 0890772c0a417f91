//! Tokens that expire while a relay runs, and an identity provider that fails at the same time. Also the output of the
//! commands that inspect a cluster with a token.

use serde_json::Value;
use std::time::{Duration, Instant};

use crate::kafka::{Secured, checked};
use crate::postgres::not_ready;
use crate::postgres::under_load;
use crate::postgres::verdict;
use crate::support::database::run;
use crate::support::relay::Relay;
use crate::support::token_endpoint::Answers;
use crate::support::wait::{STALLED, wait_until};

/// Brokers require connections to log in again before this time has passed, and close those that do not.
const LIFETIME: Duration = Duration::from_secs(25);

/// One test for all steps, because a broker takes long to start.
#[tokio::test]
async fn tokens_are_renewed_under_a_running_relay_and_a_provider_outage_costs_only_time() {
    let secured = Secured::start("tokens", &["OAUTH"], LIFETIME).await;
    // One worker, so that all connections lose their token at the same time.
    let relay =
        secured.by_token().set("relay", "workers", 1).set("admin", "listen", "127.0.0.1:0").start().await;
    let outbox = &secured.outbox;
    let writers = under_load(outbox).await;
    outbox.wait_until_settled(200, STALLED).await;
    // A new broker on a busy machine may have needed more than the 5 s for which a relay waits.
    let outages = || relay.log().matches("kafka unavailable").count();
    let at_start = outages();
    // The connections log in again with a renewed token, without any visible effect.
    let begun = Instant::now();
    wait_until("a second token is issued", STALLED, async || secured.endpoint.given() >= 2).await;
    println!("{} tokens of {LIFETIME:?} within {:.1?}", secured.endpoint.given(), begun.elapsed());
    outbox.wait_until_settled(200, STALLED).await;
    assert_eq!(relay.not_ready().await, None);
    assert_eq!(outages(), at_start, "{}", relay.log());

    // The provider fails. The relay uses the old token until it expires, and then waits.
    secured.endpoint.change(|state| state.answers = Answers::Error);
    not_ready(&relay, "500 Internal Server Error (reason: token)").await;
    assert_eq!(outages(), at_start + 1, "{}", relay.log());
    // The provider works again, but with another secret. The relay's file is replaced later.
    secured.endpoint.change(|state| {
        state.answers = Answers::Tokens;
        state.secret = "a new secret".to_owned();
    });
    not_ready(&relay, "Check client_id and the client secret (reason: token)").await;
    secured.files.put("client-secret", "a new secret\n");
    let resumed = outbox.wait_until_resumed(STALLED).await;
    println!("rows are settled again {resumed:.2?} after the client secret was replaced");
    outbox.wait_until_settled(200, STALLED).await;
    let log = relay.log();
    for secret in ["an old secret", "a new secret", "eyJ"] {
        assert!(!log.contains(secret), "{secret} in the log");
    }
    verdict(outbox, writers, relay).await;
    secured.outbox.drop_database().await;
}

/// The identity provider changes its key, and the brokers accept only tokens with the new one. The relay's token would be
/// valid for an hour.
#[tokio::test]
async fn a_token_that_the_brokers_reject_is_replaced_at_once_and_a_reload_renews_it() {
    let mut secured = Secured::start("token_rejected", &["OAUTH"], Duration::from_secs(3_600)).await;
    let insert =
        "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type) VALUES ('order', '1', 'x')";
    let configured = secured.by_token().set("admin", "listen", "127.0.0.1:0");
    let mut relay = configured.clone().start().await;
    run(&secured.outbox.client, insert).await;
    secured.outbox.wait_until_drained(STALLED).await;
    let before = secured.endpoint.given();

    // After a reload, the producer of the next batch logs in with a new token.
    relay.reload(configured);
    relay.wait_for_log("configuration reloaded").await;
    run(&secured.outbox.client, insert).await;
    wait_until("the reload renews the token", STALLED, async || secured.endpoint.given() > before).await;
    secured.outbox.wait_until_drained(STALLED).await;

    // Brokers that reject every token do not cause a request for each attempt.
    secured.endpoint.rotate_key();
    secured.kafka.stop().await;
    let old_keys = secured.file("keys.json");
    std::fs::write(old_keys, secured.endpoint.keys()).unwrap();
    secured.endpoint.change(|state| state.answers = Answers::ForgedTokens);
    let (begun, before) = (Instant::now(), secured.endpoint.given());
    secured.kafka.restart().await;
    run(&secured.outbox.client, insert).await;
    not_ready(&relay, "(reason: authentication)").await;
    wait_until("two tokens are rejected", STALLED, async || secured.endpoint.given() >= before + 2).await;
    let (given, passed) = (secured.endpoint.given() - before, begun.elapsed());
    println!("{given} rejected tokens within {passed:.1?}");
    assert!(given as u64 <= 2 + passed.as_secs() / 10, "{given} tokens within {passed:?}");

    secured.endpoint.change(|state| state.answers = Answers::Tokens);
    let begun = Instant::now();
    secured.outbox.wait_until_drained(STALLED).await;
    println!("events flow {:.1?} after the endpoint issued tokens with the new key", begun.elapsed());
    assert!(relay.stop().await.success());
    secured.outbox.drop_database().await;
}

/// The exit code of `doctor --json`, and its findings: code, place and problem of each.
async fn examined(relay: Relay) -> (i32, Vec<[String; 3]>) {
    let ended = tokio::task::spawn_blocking(move || relay.command(&["doctor", "--json"])).await.unwrap();
    let json: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended}"));
    let text = |finding: &Value, field: &str| finding[field].as_str().unwrap().to_owned();
    let shown = |finding: &Value| ["code", "place", "problem"].map(|field| text(finding, field));
    (ended.code, json["findings"].as_array().unwrap().iter().map(shown).collect())
}

#[tokio::test]
async fn check_config_and_doctor_log_in_with_a_token_and_report_what_they_cannot_inspect() {
    let secured = Secured::start("token_doctor", &["OAUTH"], Duration::from_secs(300)).await;
    let insert = |kind: &str| {
        format!(
            "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type) VALUES ('{kind}', '1', 'x')"
        )
    };
    // A new broker on a busy machine may need more than the 5 s for which the commands wait, so a relay logs in first.
    run(&secured.outbox.client, &insert("order")).await;
    let mut relay = secured.by_token().start().await;
    secured.outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    // Reads with a consumer, which requests its token in another way.
    let outbox = &secured.outbox;
    let operator = secured.by_token().set("postgres", "url", outbox.database.url_of(&outbox.roles.on_call()));
    let ended = tokio::task::spawn_blocking(move || operator.command(&["verify"])).await.unwrap();
    println!("{}", ended.succeeds());
    run(&secured.outbox.client, &insert("order")).await;
    let topic = format!("topic {}", secured.outbox.topic("order"));
    let ended = checked(secured.by_token()).await;
    println!("{}", ended.succeeds());
    assert!(ended.stdout.contains("topics         1 checked"), "{ended}");
    assert!(
        ended.stdout.contains(&format!("warning        {topic}: its replication factor is 1")),
        "{ended}"
    );

    // The metadata of the topic is visible, but its settings are not.
    let (exit, findings) = examined(secured.by_token()).await;
    let codes = |findings: &[[String; 3]]| -> Vec<String> {
        findings.iter().map(|[code, place, _]| format!("{code}: {place}")).collect()
    };
    let unseen = "check-skipped: topic settings".to_owned();
    let alone = format!("replication-factor: {topic}");
    assert_eq!((exit, codes(&findings)), (0, vec![alone.clone(), unseen.clone()]), "{findings:?}");

    run(&secured.outbox.client, &insert("nowhere")).await;
    let (exit, findings) = examined(secured.by_token()).await;
    let missing = format!("topic-missing: topic {}", secured.outbox.topic("nowhere"));
    assert_eq!((exit, codes(&findings)), (1, vec![missing, alone, unseen]), "{findings:?}");

    let wrong = secured.files.put("wrong-secret", "a wrong secret");
    let (exit, findings) =
        examined(secured.by_token().set_inner("kafka", "oauth", "client_secret_file", wrong)).await;
    let [[code, _, problem]] = &findings[..] else { panic!("{findings:?}") };
    assert_eq!((exit, code.as_str()), (1, "kafka-unreachable"));
    assert!(problem.contains("Check client_id and the client secret"), "{problem}");
    secured.outbox.drop_database().await;
}

/// A batch exceeds the limit of the topic, and the relay cannot query that limit.
#[tokio::test]
async fn with_a_token_a_small_topic_limit_costs_requests_but_loses_nothing() {
    const ROWS: i64 = 60;
    let mut secured = Secured::start("token_limit", &["OAUTH"], Duration::from_secs(300)).await;
    secured.outbox.create_topic_with("small", 1, &[("max.message.bytes", "4000")]).await;
    let sql = format!(
        "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload)
         SELECT 'small', n % 7, 'x', to_json((SELECT string_agg(md5(n || '.' || m), '') FROM generate_series(1, 50) AS m))
         FROM generate_series(1, {ROWS}) AS n"
    );
    run(&secured.outbox.client, &sql).await;
    // Not `run --once`, which gives up if the brokers do not answer for some seconds.
    let mut relay = secured.by_token().start().await;
    secured.outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success());
    assert_eq!(secured.outbox.dead_letters().await, 0);
    secured.outbox.drop_database().await;
}
