//! A standby that lacks the last commits is promoted. Everything that survived is delivered, and ids that are issued
//! again do not count as sent.

use std::collections::HashSet;
use std::time::Instant;

use crate::support::checker::{Committed, Report};
use crate::support::consumer;
use crate::support::outbox::Outbox;
use crate::support::postgres_proxy::{Act, At, Network, PostgresProxy};
use crate::support::postgres_server::{PostgresServer, Shutdown};
use crate::support::wait::{STALLED, assert_within, wait_until};
use crate::support::writers;
use crate::world;

/// The number of rounds in which the standby does not follow. They draw many times as many ids as a sequence logs
/// in advance.
const LOST_ROUNDS: usize = 30;

fn ids(events: &[Committed]) -> HashSet<uuid::Uuid> {
    events.iter().map(|event| event.event_id).collect()
}

#[tokio::test]
async fn promoted_standby_that_lacks_commits_delivers_everything_it_has() {
    let mut primary = PostgresServer::start(&[]).await;
    let mut outbox = Outbox::create_on(&primary, "failover", 6).await;
    let keys = outbox.add_aggregates("order", 50).await;
    let standby = primary.standby().await;
    // The relay reaches the primary through a proxy, which can delay one COMMIT, and the standby directly.
    let proxy = PostgresProxy::to(&primary.address()).await;
    let url =
        outbox.relay_url().replace(&primary.address(), &format!("{},{}", proxy.address(), standby.address()));
    let url = format!("{url}?target_session_attrs=read-write&sslmode=disable");
    let mut relay = world::relay(&outbox)
        .set("postgres", "url", url)
        .set("postgres", "connect_timeout", "1s")
        .start()
        .await;

    for _ in 0..10 {
        writers::write(&outbox.client, &keys).await;
    }
    outbox.wait_until_drained(STALLED).await;
    primary.wait_until_replayed(&standby).await;
    standby.detach().await;
    // These rows are committed, in Kafka and settled, but not on the standby.
    let mut lost_ids = Vec::new();
    for _ in 0..LOST_ROUNDS {
        lost_ids.extend(writers::write(&outbox.client, &keys).await);
    }
    outbox.wait_until_drained(STALLED).await;
    // These rows are in Kafka, but their settlement never reaches the server. The acknowledged set keeps them, by id
    // and event_id.
    let held = proxy.on(At::Commit, Act::Hold);
    let unsettled = writers::write(&outbox.client, &keys).await;
    held.await.unwrap();
    lost_ids.extend(unsettled);
    let on_primary = outbox.committed().await;

    // The first host of the URL still accepts connections but never answers.
    primary.stop(Shutdown::Crash);
    proxy.set_network(Network::BlackHole);
    proxy.cut();
    standby.promote().await;
    let promoted = Instant::now();
    outbox.move_to(&standby).await;
    let survived = outbox.committed().await;
    let settled = outbox.settled().await;
    let mut new_ids = HashSet::new();
    while new_ids.len() < 2 * lost_ids.len() {
        new_ids.extend(writers::write(&outbox.client, &keys).await);
    }
    let again = lost_ids.iter().filter(|id| new_ids.contains(id)).count();
    wait_until("rows are settled again", STALLED, async || outbox.settled().await > settled).await;
    assert_within("after the promotion: rows are settled again", promoted.elapsed(), world::RESUMED_WITHIN);
    outbox.wait_until_drained(STALLED).await;
    wait_until("the relay is ready", STALLED, async || relay.not_ready().await.is_none()).await;
    assert!(relay.stop().await.success());

    // The judge knows from the ledger of the primary what was lost. Lost events may be in Kafka, but need not be.
    let (lost, known) = (ids(&on_primary), ids(&survived));
    let lost: HashSet<_> = lost.difference(&known).copied().collect();
    let records = consumer::read_all(&outbox.topics()).await;
    let (gone, kept): (Vec<_>, Vec<_>) =
        records.into_iter().partition(|record| record.event_id().is_some_and(|id| lost.contains(&id)));
    let report = Report::new(&outbox.committed().await, &kept);
    println!(
        "failover: {} commits lost, {} of them in Kafka, {again} of their ids issued again; {report}",
        lost.len(),
        gone.len()
    );
    report.assert_exact();
    assert_eq!(lost.len(), lost_ids.len());
    assert!(again > keys.len(), "ids of the acknowledged set must have been issued again, too");
    assert_eq!(outbox.count("SELECT count(*) FROM app.outbox_dead_letter").await, 0);
    outbox.drop().await;
}
