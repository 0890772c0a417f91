//! Relays that freeze, vanish or are cut off: how long they hold their lanes, and what happens to their rows.

use std::time::{Duration, Instant, SystemTime};

use crate::support::outbox::Outbox;
use crate::support::postgres_proxy::{Act, At, Network, PostgresProxy};
use crate::support::relay::{Relay, RelayProcess};
use crate::support::rows::{self, Filling};
use crate::support::wait::{STALLED, assert_within, wait_until};
use crate::world::{self, BATCH_SIZE, WORKERS, assert_replaced};

/// The size of rows that fill every buffer between the server and a relay that does not read.
const LARGE: usize = 200_000;

async fn behind(outbox: &Outbox) -> (PostgresProxy, Relay) {
    let url = outbox.relay_url();
    let proxy = PostgresProxy::to(url.split(['@', '/']).nth(3).unwrap()).await;
    let relay = world::relay(outbox).set("postgres", "url", proxy.url(&url));
    (proxy, relay)
}

#[tokio::test]
async fn relay_frozen_for_less_than_takeover_timeout_keeps_its_lanes_and_repeats_nothing() {
    let outbox = Outbox::create("short_freeze", 6).await;
    let writers = world::under_load(&outbox).await;
    // Far longer than the freeze, because on a busy machine a relay also waits for the CPU before and after it.
    let relay = || world::patient_with_kafka(&outbox).set("relay", "takeover_timeout", "20s");
    let mut relays = [relay().start().await, relay().start().await];
    for freeze in 0..8 {
        let victim = &relays[freeze % 2];
        outbox.wait_until_publishing(victim).await;
        victim.freeze();
        tokio::time::sleep(Duration::from_secs(1)).await; // the freeze
        victim.thaw();
        outbox.wait_until_settled(500, STALLED).await;
    }
    writers.stop().await;
    world::verdict(&outbox, &mut relays, "8 short freezes").await.assert_exact();
    outbox.drop().await;
}

#[tokio::test]
async fn relay_frozen_longer_than_takeover_timeout_is_replaced_and_does_not_settle_after_waking() {
    let outbox = Outbox::create("long_freeze", 6).await;
    let writers = world::under_load(&outbox).await;
    let mut relays = [world::relay(&outbox).start().await, world::relay(&outbox).start().await];
    let freezes = 3;
    for freeze in 0..freezes {
        let victim = &relays[freeze % 2];
        outbox.wait_until_publishing(victim).await;
        victim.freeze();
        assert_replaced(&outbox, victim, &format!("freeze {freeze}")).await;
        victim.thaw();
        outbox.wait_until_settled(500, STALLED).await;
    }
    writers.stop().await;
    let report = world::verdict(&outbox, &mut relays, &format!("{freezes} long freezes")).await;
    assert!(report.duplicates <= freezes * WORKERS * BATCH_SIZE, "{report}");
    outbox.drop().await;
}

/// Whether the server is sending data that this relay does not read. In that state, neither the idle timeout nor the
/// statement timeout applies.
async fn is_sent_to(outbox: &Outbox, relay: &RelayProcess) -> bool {
    let sql = "SELECT count(*) > 0 FROM pg_stat_activity
               WHERE application_name = $1 AND state = 'active' AND wait_event = 'ClientWrite'";
    outbox.client.query_one(sql, &[&relay.name]).await.unwrap().get(0)
}

#[tokio::test]
async fn relay_frozen_while_it_receives_rows_is_replaced() {
    let outbox = Outbox::create("frozen_reading", 3).await;
    // All rows have the same key, so that one claim reads them, and far exceed the buffers.
    rows::insert(&outbox, "order", 1, 0..150, Filling::Random(LARGE)).await;
    let (proxy, relay) = behind(&outbox).await;
    proxy.set_network(Network::SlowRows(Duration::from_millis(30)));
    let reading = proxy.on(At::Row(LARGE / 2), Act::Pass);
    let victim = relay.set("relay", "workers", 1).set("relay", "batch_bytes", "64MiB").spawn(&["run"]);
    reading.await.unwrap();
    victim.freeze();
    wait_until("the server waits to send", STALLED, async || is_sent_to(&outbox, &victim).await).await;
    let mut successor = world::relay(&outbox).start().await;
    assert_replaced(&outbox, &victim, "frozen while receiving rows").await;
    proxy.set_network(Network::Open);
    victim.thaw();
    wait_until("the relay has noticed", STALLED, async || victim.log().contains("postgres unavailable"))
        .await;
    assert!(successor.stop().await.success());
    rows::insert(&outbox, "order", 1, 150..250, Filling::Nothing).await;
    world::verdict(&outbox, &mut [victim], "frozen while receiving rows").await;
    outbox.drop().await;
}

/// No packet passes in either direction: no reset, and no end of the connection.
#[tokio::test]
async fn relay_whose_host_vanished_holds_its_lanes_no_longer_than_takeover_timeout() {
    let outbox = Outbox::create("vanished", 6).await;
    let writers = world::under_load(&outbox).await;
    let (proxy, relay) = behind(&outbox).await;
    let vanishing = relay.start().await;
    let other = world::relay(&outbox).start().await;
    outbox.wait_until_publishing(&vanishing).await;
    proxy.set_network(Network::BlackHole);
    vanishing.freeze(); // Kafka receives nothing from it either
    assert_replaced(&outbox, &vanishing, "vanished").await;
    writers.stop().await;
    let report = world::verdict(&outbox, &mut [other], "a host that vanished").await;
    assert!(report.duplicates <= WORKERS * BATCH_SIZE, "{report}");
    drop(vanishing);
    outbox.drop().await;
}

#[tokio::test]
async fn relay_that_vanished_while_it_received_rows_holds_its_lanes_no_longer_either() {
    let outbox = Outbox::create("vanished_reading", 3).await;
    rows::insert(&outbox, "order", 1, 0..150, Filling::Random(LARGE)).await;
    let (proxy, relay) = behind(&outbox).await;
    let reading = proxy.on(At::Row(LARGE / 2), Act::Hold);
    let vanishing = relay.set("relay", "workers", 1).set("relay", "batch_bytes", "64MiB").spawn(&["run"]);
    reading.await.unwrap();
    vanishing.freeze();
    proxy.set_network(Network::BlackHole);
    wait_until("the server waits to send", STALLED, async || is_sent_to(&outbox, &vanishing).await).await;
    let other = world::relay(&outbox).start().await;
    assert_replaced(&outbox, &vanishing, "vanished while receiving rows").await;
    world::verdict(&outbox, &mut [other], "vanished while receiving rows").await.assert_exact();
    drop(vanishing);
    outbox.drop().await;
}

/// The relay reaches Kafka but not PostgreSQL. Everything that it publishes meanwhile can only be a duplicate.
#[tokio::test]
async fn relay_cut_off_from_postgres_alone_is_replaced_and_resumes() {
    let outbox = Outbox::create("cut_off", 6).await;
    let writers = world::under_load(&outbox).await;
    let (proxy, relay) = behind(&outbox).await;
    let cut_off = relay.start().await;
    let other = world::relay(&outbox).start().await;
    for round in 0..2 {
        outbox.wait_until_publishing(&cut_off).await;
        proxy.set_network(Network::BlackHole);
        assert_replaced(&outbox, &cut_off, &format!("cut off {round}")).await;
        proxy.set_network(Network::Open);
        let back = Instant::now();
        outbox.wait_until_publishing(&cut_off).await;
        assert_within("publishing resumed", back.elapsed(), world::RESUMED_WITHIN);
    }
    writers.stop().await;
    let report = world::verdict(&outbox, &mut [cut_off, other], "cut off from PostgreSQL").await;
    assert!(report.duplicates <= 2 * WORKERS * BATCH_SIZE, "{report}");
    outbox.drop().await;
}

/// The relay's connections end, but the server does not notice. The relay waits for its own old claim.
#[tokio::test]
async fn connections_that_ended_only_on_the_relays_side_hold_lanes_no_longer_than_takeover_timeout() {
    let outbox = Outbox::create("half_open", 6).await;
    let writers = world::under_load(&outbox).await;
    let (proxy, relay) = behind(&outbox).await;
    let relay = relay.start().await;
    let rounds = 3;
    for round in 0..rounds {
        outbox.wait_until_publishing(&relay).await;
        proxy.half_open();
        assert_replaced(&outbox, &relay, &format!("half open {round}")).await;
    }
    writers.stop().await;
    // The relay replaces itself, and knows what Kafka has acknowledged.
    world::verdict(&outbox, &mut [relay], "half open").await.assert_exact();
    outbox.drop().await;
}

/// A statement may have to be prepared between BEGIN and COMMIT, so the connection can end while any transaction is open.
#[tokio::test]
async fn connections_that_end_while_a_statement_is_prepared_leave_no_lock() {
    let outbox = Outbox::create("half_open_short", 1).await;
    let (proxy, relay) = behind(&outbox).await;
    let relay = relay.start().await;
    let locker = outbox.database.connect().await;
    let now = async || outbox.client.query_one("SELECT now()", &[]).await.unwrap().get::<_, SystemTime>(0);
    let count = async |what, since| {
        let sql = format!(
            "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
             WHERE application_name = $1 AND relation = 'app.outbox'::regclass AND {what} $2"
        );
        outbox.client.query_one(&sql, &[&relay.name, &since]).await.unwrap().get::<_, i64>(0)
    };
    locker.batch_execute("BEGIN; LOCK TABLE app.outbox").await.unwrap();
    let cut = now().await;
    proxy.cut();
    wait_until("a new connection prepares a statement, which waits for the lock", STALLED, async || {
        count("NOT granted AND backend_start >", cut).await > 0
    })
    .await;
    let ended = now().await;
    proxy.half_open();
    locker.batch_execute("COMMIT").await.unwrap();
    let released = wait_until("no connection that ended has a lock", STALLED, async || {
        count("backend_start <", ended).await == 0
    })
    .await;
    assert_within("locks released", released, Duration::from_secs(7));
    rows::insert(&outbox, "order", 1, 0..10, Filling::Nothing).await;
    world::verdict(&outbox, &mut [relay], "connections that end while statements are prepared").await;
    outbox.drop().await;
}

/// A slow connection to PostgreSQL costs only time.
#[tokio::test]
async fn slow_network_costs_only_time() {
    let outbox = Outbox::create("slow_network", 6).await;
    let writers = world::under_load(&outbox).await;
    let (proxy, relay) = behind(&outbox).await;
    proxy.set_network(Network::Slow(Duration::from_millis(30)));
    let relay = relay.start().await;
    outbox.wait_until_settled(4_000, STALLED).await;
    proxy.set_network(Network::Open);
    writers.stop().await;
    world::verdict(&outbox, &mut [relay], "30 ms more per message").await.assert_exact();
    outbox.drop().await;
}

/// After the last attempt to record rows, the relay must end soon, or the service manager kills it before it logs their number.
#[tokio::test]
async fn relay_that_is_stopped_while_postgres_is_silent_still_logs_the_unrecorded_rows() {
    let outbox = Outbox::create("silent_stop", 1).await;
    let (proxy, relay) = behind(&outbox).await;
    let settling = proxy.on(At::Commit, Act::Hold);
    rows::insert(&outbox, "order", 1, 0..100, Filling::Random(100)).await;
    let relay = relay.set("relay", "shutdown_timeout", "2min").set("postgres", "connect_timeout", "30s");
    let mut relay = relay.spawn(&["run"]);
    settling.await.unwrap();
    proxy.set_network(Network::BlackHole);
    let stopped = Instant::now();
    let ended = relay.stop().await;
    // The attempt itself fails after 35 s. A further query would take as long again.
    assert!(stopped.elapsed() < Duration::from_secs(55), "it took {:?}", stopped.elapsed());
    assert_eq!(ended.code(), Some(1), "{}", relay.log());
    assert!(relay.log().contains("100 events that could not be recorded as sent"), "{}", relay.log());
    drop(proxy);
    outbox.drop().await;
}

/// More hosts than `connect_timeout` fits into the time for one attempt. Each accepts connections and never answers.
#[tokio::test]
async fn relay_connects_although_many_hosts_before_the_primary_are_frozen() {
    let outbox = Outbox::create("frozen_hosts", 1).await;
    let url = outbox.relay_url();
    let server = url.split(['@', '/']).nth(3).unwrap();
    let mut frozen = Vec::new();
    for _ in 0..6 {
        frozen.push(tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap());
    }
    let hosts = frozen.iter().map(|host| host.local_addr().unwrap().to_string());
    let hosts = hosts.chain([server.to_owned()]).collect::<Vec<_>>().join(",");
    rows::insert(&outbox, "order", 1, 0..10, Filling::Nothing).await;
    let relay = outbox.relay().set("postgres", "url", url.replace(server, &hosts));
    let relay = relay.set("postgres", "connect_timeout", "2s").spawn(&["run", "--once"]);
    outbox.wait_until_drained(STALLED * 2).await;
    drop(relay);
    outbox.drop().await;
}
