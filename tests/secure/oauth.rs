//! Tokens that end while a relay runs, and an identity provider that fails meanwhile.

use std::time::{Duration, Instant};

use crate::kafka::Secured;
use crate::postgres::{not_ready, under_load, verdict};
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
    assert!(!relay.log().contains("Kafka fails"), "{}", relay.log());

    // The provider fails: the old token is used while it is good, then the relay waits.
    secured.endpoint.change(|state| state.answers = Answers::Error);
    not_ready(&relay, "500 Internal Server Error (token)").await;
    assert_eq!(relay.log().matches("Kafka fails").count(), 1, "{}", relay.log());
    // It works again, and takes another secret: the relay's file follows later.
    secured.endpoint.change(|state| {
        state.answers = Answers::Tokens;
        state.secret = "a new secret".to_owned();
    });
    not_ready(&relay, "look at client_id and the client secret (token)").await;
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
