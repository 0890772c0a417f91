//! Connections that end at the COMMIT of a settlement.

use crate::support::outbox::Outbox;
use crate::support::postgres_proxy::{Act, At, PostgresProxy};
use crate::support::wait::STALLED;
use crate::world;

const TIMES: usize = 40;

/// Loses this message repeatedly, with one relay.
async fn lost(test: &str, at: At) {
    let outbox = Outbox::create(test, 6).await;
    let writers = world::under_load(&outbox).await;
    let url = outbox.relay_url();
    let proxy = PostgresProxy::to(url.split(['@', '/']).nth(3).unwrap()).await;
    let relay = world::patient_with_kafka(&outbox).set("postgres", "url", proxy.url(&url)).start().await;
    for _ in 0..TIMES {
        proxy.on(at, Act::Cut).await.unwrap();
        outbox.wait_until_settled(1, STALLED).await;
    }
    writers.stop().await;
    world::verdict(&outbox, &mut [relay], &format!("{at:?} lost {TIMES} times")).await.assert_exact();
    outbox.drop().await;
}

#[tokio::test]
async fn lost_answer_to_commit_loses_and_repeats_nothing() {
    lost("commit_reply", At::CommitReply).await;
}

#[tokio::test]
async fn lost_commit_loses_and_repeats_nothing() {
    lost("commit", At::Commit).await;
}
