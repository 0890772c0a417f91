//! Tokens that end while a relay runs, and an identity provider that fails meanwhile; and what the commands that look at a
//! cluster see of it with a token.

use serde_json::Value;
use std::time::{Duration, Instant};

use crate::kafka::{Secured, checked};
use crate::postgres::not_ready;
use crate::postgres::under_load;
use crate::postgres::verdict;
use crate::support::database::run;
use crate::support::relay::Relay;
use crate::support::token_endpoint::Answers;
use crate::support::wait::wait_until;

const WITHIN: Duration = Duration::from_secs(40);
/// Brokers make connections log in again before it ends, and end those that do not.
const LIFETIME: Duration = Duration::from_secs(25);

/// One broker for all of it, since each takes long to start.
#[tokio::test]
async fn tokens_are_renewed_under_a_running_relay_and_an_outage_of_the_provider_costs_only_time() {
    let secured = Secured::start("tokens", &["OAUTH"], LIFETIME).await;
    let relay = secured.by_token().set("admin", "listen", "127.0.0.1:0").start().await;
    let outbox = &secured.outbox;
    let writers = under_load(outbox).await;
    outbox.wait_until_settled(200, WITHIN).await;
    // The connections log in again, and the token is renewed: nobody notices.
    let begun = Instant::now();
    wait_until("a second token is given", WITHIN, async || secured.endpoint.given() >= 2).await;
    println!("{} tokens of {LIFETIME:?} within {:.1?}", secured.endpoint.given(), begun.elapsed());
    outbox.wait_until_settled(200, WITHIN).await;
    assert_eq!(relay.not_ready().await, None);
    assert!(!relay.log().contains("kafka unavailable"), "{}", relay.log());

    // The provider fails: the old token is used while it is good, then the relay waits.
    secured.endpoint.change(|state| state.answers = Answers::Error);
    not_ready(&relay, "500 Internal Server Error (token)").await;
    assert_eq!(relay.log().matches("kafka unavailable").count(), 1, "{}", relay.log());
    // It works again, and takes another secret: the relay's file follows later.
    secured.endpoint.change(|state| {
        state.answers = Answers::Tokens;
        state.secret = "a new secret".to_owned();
    });
    not_ready(&relay, "Check client_id and the client secret (token)").await;
    secured.files.put("client-secret", "a new secret\n");
    let resumed = outbox.wait_until_resumed(WITHIN).await;
    println!("rows are settled again {resumed:.2?} after the client secret was replaced");
    outbox.wait_until_settled(200, WITHIN).await;
    let log = relay.log();
    for secret in ["an old secret", "a new secret", "eyJ"] {
        assert!(!log.contains(secret), "{secret} in the log");
    }
    verdict(outbox, writers, relay).await;
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
async fn check_config_and_doctor_log_in_with_a_token_and_say_what_they_cannot_see_with_one() {
    let secured = Secured::start("token_doctor", &["OAUTH"], Duration::from_secs(300)).await;
    let insert = |kind: &str| {
        format!(
            "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type) VALUES ('{kind}', '1', 'x')"
        )
    };
    run(&secured.outbox.client, &insert("order")).await;
    let topic = format!("topic {}", secured.outbox.topic("order"));
    let ended = checked(secured.by_token()).await;
    println!("{}", ended.succeeds());
    assert!(ended.stdout.contains("topics         1 checked"), "{ended}");
    assert!(
        ended.stdout.contains(&format!("warning        {topic}: its replication factor is 1")),
        "{ended}"
    );

    // The topic's replicas are seen, its settings are not.
    let (exit, findings) = examined(secured.by_token()).await;
    let codes = |findings: &[[String; 3]]| -> Vec<String> {
        findings.iter().map(|[code, place, _]| format!("{code}: {place}")).collect()
    };
    let unseen = "not-looked-at: topic settings".to_owned();
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

/// More in one request than the topic takes, and the relay cannot ask how much that is.
#[tokio::test]
async fn with_a_token_a_topic_with_a_small_limit_costs_requests_and_no_event() {
    const ROWS: i64 = 60;
    let mut secured = Secured::start("token_limit", &["OAUTH"], Duration::from_secs(300)).await;
    secured.outbox.create_topic_with("small", 1, &[("max.message.bytes", "4000")]).await;
    let sql = format!(
        "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload)
         SELECT 'small', n % 7, 'x', to_json((SELECT string_agg(md5(n || '.' || m), '') FROM generate_series(1, 50) AS m))
         FROM generate_series(1, {ROWS}) AS n"
    );
    run(&secured.outbox.client, &sql).await;
    let relay = secured.by_token();
    let ended = tokio::task::spawn_blocking(move || relay.command(&["run", "--once"])).await.unwrap();
    ended.succeeds();
    assert_eq!((secured.outbox.unsent().await, secured.outbox.dead_letters().await), (0, 0), "{ended}");
    secured.outbox.drop_database().await;
}
