//! Rotation of Kafka's certificates and passwords under running relays.

use crate::kafka::Secured;
use crate::postgres::not_ready;
use crate::postgres::under_load;
use crate::postgres::verdict;
use crate::support::certificates::authority;
use crate::support::outbox::Outbox;
use crate::support::relay::Relay;
use crate::support::topics;
use crate::support::wait::STALLED;

/// One relay logs in with a password, the other one with a certificate. The broker restarts with another authority,
/// another certificate and another password. The relays' files are replaced one by one afterwards.
#[tokio::test]
async fn kafka_certificates_and_passwords_are_rotated_under_running_relays() {
    let mut secured = Secured::start("rotated", &["SASL", "MUTUAL"], STALLED).await;
    let mut other = Outbox::on(&secured.kafka.cluster(), "rotated_too").await;
    other.create_topic("order", 3).await;
    let admin = |relay: Relay| relay.set("admin", "listen", "127.0.0.1:0");
    let by_password = admin(secured.by_password("SCRAM-SHA-512")).start().await;
    let by_certificate = admin(secured.by_certificate(&other)).start().await;
    let writers = [under_load(&secured.outbox).await, under_load(&other).await];
    for outbox in [&secured.outbox, &other] {
        outbox.wait_until_settled(200, STALLED).await;
    }

    let password = "SCRAM-SHA-512=[password=a new password]";
    let user = ["--alter", "--add-config", password, "--entity-type", "users", "--entity-name", "relay"];
    secured.kafka.run_tool(topics::config_command(), &user).await;
    secured.outbox.wait_until_settled(200, STALLED).await; // existing connections stay open
    let next = authority("the next authority");
    secured.files.put("broker.pem", next.server(&["localhost"]).store_pem());
    secured.files.put("clients.pem", next.cert_pem());
    secured.kafka.stop().await;
    secured.kafka.restart().await;
    for relay in [&by_password, &by_certificate] {
        not_ready(relay, "trust the authority that signed").await;
    }
    secured.files.put("ca.pem", next.cert_pem());
    not_ready(&by_password, "(reason: authentication)").await;
    not_ready(&by_certificate, "(reason: tls)").await;
    secured.files.put("password", "a new password\n");
    secured.give_to_clients(&next);
    for outbox in [&secured.outbox, &other] {
        let resumed = outbox.wait_until_resumed(STALLED).await;
        println!("rows are settled again {resumed:.2?} after the last file had been replaced");
        outbox.wait_until_settled(200, STALLED).await;
    }
    let [one, two] = writers;
    verdict(&secured.outbox, one, by_password).await;
    verdict(&other, two, by_certificate).await;
    other.drop_database().await;
    secured.outbox.drop_database().await;
}
