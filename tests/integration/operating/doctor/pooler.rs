//! PgBouncer in transaction mode.

use super::{Found, World};
use crate::support::outbox::Outbox;
use crate::support::pgbouncer::{self, PgBouncer};
use crate::support::postgres_server::PostgresServer;
use serde_json::Value;

#[tokio::test]
async fn pooler_is_reported_by_doctor_and_status() {
    let Some((_, version)) = pgbouncer::installed() else {
        println!("SKIPPED: PgBouncer is not installed");
        return;
    };
    let server = PostgresServer::start(&[]).await;
    let world = World::of(Outbox::create_on(&server, "doctor_pooler", 1).await).await;
    let pooler = PgBouncer::start(&server, world.outbox.roles.relay()).await;
    let url = world.outbox.database.url().replace(&server.address(), &pooler.address());
    let pooled = world.relay.clone().set("postgres", "url", url).set("postgres", "sslmode", "disable");

    let found = Found::by(&pooled.clone().set("postgres", "prepared_statements", true));
    let remedy = found.has("pooler", "different server connections");
    assert!(
        remedy.contains("idle_transaction_timeout") && remedy.contains("publish_timeout = 45s"),
        "{remedy}"
    );
    if pgbouncer::prepares(version) {
        found.has_not("pooler-prepared-statements");
    } else {
        found.has("pooler-prepared-statements", "does not exist in the next transaction");
    }
    let unprepared = pooled.set("postgres", "prepared_statements", false);
    let found = Found::by(&unprepared);
    found.has("pooler", "different server connections");
    found.has_not("pooler-prepared-statements");

    let status = unprepared.clone().command(&["status", "--json"]);
    let json: Value = serde_json::from_str(status.succeeds()).unwrap();
    assert_eq!(json["relays"]["pooled"], true, "{json:#}");
    // With a pooler, connections do not show whether relays are running.
    assert_eq!(json["verdict"]["state"], "healthy", "{json:#}");
    let text = unprepared.command(&["status"]);
    assert!(text.succeeds().contains("connected through a pooler: these are its connections"), "{text}");

    world.doctor().has_not("pooler");
    let direct = world.relay.clone().command(&["status", "--json"]);
    let json: Value = serde_json::from_str(direct.succeeds()).unwrap();
    assert_eq!(json["relays"]["pooled"], false, "{json:#}");
    world.drop().await;
}
