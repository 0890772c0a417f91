//! The steps of the cycle feed the watchdog. A relay that hangs does not feed it, a relay that waits does.

use std::time::Duration;

use crate::support::kafka_proxy::Proxy;
use crate::support::notify_socket::NotifySocket;
use crate::support::outbox::Outbox;
use crate::support::postgres_proxy::{Network, PostgresProxy};
use crate::support::relay::{Relay, RelayProcess};
use crate::support::rows::{self, Filling};
use crate::support::wait::{STALLED, wait_until};

/// Much shorter than in the unit, so that a test need not wait that long. No step of these relays takes this time.
const PERIOD: Duration = Duration::from_secs(8);

fn watched(socket: &NotifySocket, relay: Relay) -> RelayProcess {
    // A waiting claim sends a keep-alive every second.
    let relay = relay.set("relay", "takeover_timeout", "3s");
    let relay = relay.set_environment("WATCHDOG_USEC", PERIOD.as_micros().to_string());
    socket.tell(relay).spawn(&["run"])
}

/// Waits until the watchdog has been fed this many more times, and never late.
async fn assert_fed(socket: &NotifySocket, times: usize) {
    let enough = socket.feeds().len() + times;
    wait_until("the watchdog is fed", STALLED, async || socket.feeds().len() >= enough).await;
    assert!(socket.longest_silence() < PERIOD, "{:?}", socket.longest_silence());
}

#[tokio::test]
async fn relay_that_works_idles_or_waits_for_servers_feeds_the_watchdog() {
    let outbox = Outbox::create("fed", 1).await;
    let mut kafka = Proxy::open().await;
    let url = outbox.database.url();
    let server = url.split('@').nth(1).and_then(|rest| rest.split('/').next()).unwrap();
    let postgres = PostgresProxy::to(server).await;
    let mut socket = NotifySocket::bind();
    let relay = outbox.relay().set("kafka", "bootstrap_servers", kafka.address()).set(
        "postgres",
        "url",
        postgres.url(&url),
    );
    let mut relay = watched(&socket, relay);
    socket.wait_for("READY=1").await;
    // With the default timeouts, a step may take 75 s. The relay tells systemd, so that a slow step does not count as a
    // hang.
    socket.wait_for("WATCHDOG_USEC=150000000").await;
    rows::insert(&outbox, "order", 10, 0..1_000, Filling::Nothing).await;
    outbox.wait_until_drained(STALLED).await;
    assert_fed(&socket, 6).await;

    kafka.stall().await;
    rows::insert(&outbox, "order", 10, 1_000..2_000, Filling::Nothing).await;
    wait_until("a claim waits for Kafka", STALLED, async || outbox.waiting_claims().await > 0).await;
    assert_fed(&socket, 6).await;
    kafka.close().await;
    postgres.set_network(Network::Refused);
    postgres.cut();
    socket.wait_for("STATUS=PostgreSQL").await;
    assert_fed(&socket, 6).await;

    postgres.set_network(Network::Open);
    kafka.resume().await;
    outbox.wait_until_drained(STALLED).await;
    assert!(relay.stop().await.success(), "{}", relay.log());
    outbox.drop().await;
}

#[tokio::test]
async fn idle_relay_that_polls_once_an_hour_feeds_the_watchdog() {
    let outbox = Outbox::create("hourly", 1).await;
    let mut socket = NotifySocket::bind();
    let relay = outbox.relay().set("relay", "poll_interval", "1h").set("admin", "listen", "127.0.0.1:0");
    let mut relay = watched(&socket, relay);
    socket.wait_for("READY=1").await;
    // The pauses between two polls double, starting at one millisecond. During long pauses, waiting counts as progress.
    wait_until("the watchdog is fed during long pauses", STALLED, async || socket.longest_silence() > PERIOD)
        .await;
    assert!(socket.longest_silence() < Duration::from_secs(15), "{:?}", socket.longest_silence());
    assert!(relay.stop().await.success(), "{}", relay.log());
    outbox.drop().await;
}

/// What systemd sees: no message within WatchdogSec, although the relay is READY and the process is alive.
#[cfg(feature = "fail-points")]
async fn assert_starves(test: &str, point: &str) {
    let outbox = Outbox::create(test, 1).await;
    let mut socket = NotifySocket::bind();
    // A flow would hold all lanes, so the other worker would have nothing to do.
    let relay = outbox.relay().set("relay", "flow_window", "0s");
    let mut relay = watched(&socket, relay.set_environment("OUTBOX_RELAY_FAIL_POINT", point));
    socket.wait_for("READY=1").await;
    let mut number = 0;
    wait_until("the relay hangs", STALLED, async || {
        rows::insert(&outbox, "order", 100, number..number + 100, Filling::Nothing).await;
        number += 100;
        relay.log().contains("fail point")
    })
    .await;
    wait_until("the watchdog is not fed for long", STALLED, async || socket.is_silent_for(PERIOD)).await;
    assert!(relay.is_running());
    if !point.starts_with("scouting") {
        // The other worker and the scout continue, but they do not hide that one worker hangs.
        let before = outbox.settled().await;
        rows::insert(&outbox, "order", 100, number..number + 1_000, Filling::Nothing).await;
        wait_until("other rows are settled", STALLED, async || outbox.settled().await > before).await;
        assert!(socket.is_silent_for(PERIOD), "{socket:?}");
    }
    relay.kill();
    outbox.drop().await;
}

#[cfg(feature = "fail-points")]
#[tokio::test]
async fn hanging_worker_starves_the_watchdog() {
    assert_starves("hangs", "before-settlement:3").await;
}

#[cfg(feature = "fail-points")]
#[tokio::test]
async fn hanging_scout_starves_the_watchdog() {
    assert_starves("blind", "scouting:100").await;
}
