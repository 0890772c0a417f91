//! A claim whose read is sent together with its lock, in one round trip.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use outbox_relay::config;
use postgres::columns::PayloadType;
use postgres::connection::pool::Database;
use postgres::cycle::claim::PostgresOutbox;
use postgres::cycle::row::OutboxRow;
use postgres::cycle::statements::Statements;
use relay::failure::{FaultKind, Rejection};
use relay::health::stats::Stats;
use relay::lanes::Lane;
use relay::lanes::marks::Excepted;
use relay::outbox::{
    Claim, Epoch, Event, Outbox as _, Payload, ReadEnd, ReadRequest, RejectedRow, RowSelection, Search,
    SearchResult, Settled, Settlement, Wanted,
};

use crate::rows::unreadable::damage;
use crate::support::database::run;
use crate::support::outbox::Outbox;

const ROWS: &str = "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload)
                    SELECT 'order', 'order-' || n, 'Numbered', to_json(repeat(n::text, 2000))
                    FROM generate_series(1, 1000) AS n";
const UNSENT: &str = "SELECT count(*) FROM app.outbox WHERE sent_at IS NULL";

/// A worker's access to the outbox of a test.
fn worker(outbox: &Outbox, prepares: bool) -> PostgresOutbox {
    let settings = [
        ("POSTGRES__URL", outbox.relay_url()),
        ("POSTGRES__PREPARED_STATEMENTS", prepares.to_string()),
        ("KAFKA__BOOTSTRAP_SERVERS", "none:1".to_owned()),
        ("OUTBOX__TABLE", "app.outbox".to_owned()),
    ];
    let settings = settings.map(|(name, value)| (format!("OUTBOX_RELAY__{name}"), value));
    let config = config::load(None, settings.into_iter()).unwrap();
    let (table, sent) = (&config.outbox.table, config.outbox.on_sent);
    let statements = Statements::new(table, PayloadType::Json, sent, config.outbox.topic.clone(), 1_000_000);
    let database = Database::new(&config.postgres, 1, Arc::new(Stats::new())).unwrap();
    PostgresOutbox::new(database, Rc::new(statements), Duration::from_secs(60))
}

fn everything(lanes: &[Lane]) -> ReadRequest {
    ReadRequest {
        rows: RowSelection::Pending,
        wanted: lanes.iter().map(|&lane| Wanted { lane, low: i64::MIN, share: 10_000, row: None }).collect(),
        epoch: Epoch::NONE,
        excepted: Excepted::none(),
        rows_max: 10_000,
    }
}

fn lanes_of(rows: &[OutboxRow]) -> BTreeSet<i16> {
    rows.iter().map(|row| row.lane().number()).collect()
}

#[tokio::test]
async fn claim_read_with_its_lock_has_no_row_of_a_lane_that_another_session_owne_holds() {
    let outbox = Outbox::without_topics("claims").await;
    run(&outbox.client, ROWS).await;
    let other = outbox.database.connect().await;
    run(&other, "BEGIN; SELECT FROM app.outbox_lane WHERE lane % 2 = 0 FOR UPDATE").await;
    for prepares in [true, false] {
        let (mut worker, lanes) = (worker(&outbox, prepares), Lane::all().collect::<Vec<_>>());
        let mut claim = worker.claim(&lanes, Some(&everything(&lanes))).await.unwrap();
        assert_eq!(claim.lanes().len(), 32);
        let mut rows = Vec::new();
        let slice = claim.next_slice(1, usize::MAX, &mut rows).await.unwrap();
        assert_eq!(slice.end, ReadEnd::Complete, "all rows at once, whatever the requested number");
        let unheld = "SELECT count(*) FROM app.outbox WHERE (hashtext(aggregate_id) & 63) % 2 = 1";
        let expected: i64 = outbox.client.query_one(unheld, &[]).await.unwrap().get(0);
        assert_eq!(rows.len() as i64, expected);
        assert!(lanes_of(&rows).iter().all(|lane| lane % 2 == 1), "{:?}", lanes_of(&rows));
        claim.release().await.unwrap();
    }
    outbox.drop().await;
}

#[tokio::test]
async fn claim_read_with_its_lock_can_be_read_again_and_settled() {
    let outbox = Outbox::without_topics("claims").await;
    run(&outbox.client, ROWS).await;
    let mut left = 1000;
    for prepares in [true, false] {
        let lanes: Vec<Lane> = Lane::all().collect();
        let mut worker = worker(&outbox, prepares);
        let mut claim = worker.claim(&lanes, Some(&everything(&lanes))).await.unwrap();
        // The rows of the first read exceed all buffers between server and relay.
        claim.read(&ReadRequest { rows_max: 100, ..everything(&lanes) }).await.unwrap();
        let mut rows = Vec::new();
        let slice = claim.next_slice(1000, usize::MAX, &mut rows).await.unwrap();
        assert_eq!((rows.len(), slice.end), (100, ReadEnd::Cut));
        let settlement = Settlement {
            sent: rows.iter().collect(),
            rejected: Vec::new(),
            blocked: Vec::new(),
            held: Vec::new(),
            around_locks: false,
        };
        assert_eq!(claim.settle(&settlement).await.unwrap(), Settled::All);
        left -= 100;
        let unsent: i64 = outbox.client.query_one(UNSENT, &[]).await.unwrap().get(0);
        assert_eq!(unsent, left, "the settlement is committed");
    }
    outbox.drop().await;
}

/// Otherwise a relay would remember all rows of the batch, and leave their lanes alone for a while.
#[tokio::test]
async fn settlement_tells_which_rows_are_recorded_although_a_rejected_one_is_locked() {
    let outbox = Outbox::without_topics("claims_locked").await;
    run(&outbox.client, ROWS).await;
    let other = outbox.database.connect().await;
    run(&other, "BEGIN; SELECT FROM app.outbox WHERE id = 500 FOR UPDATE").await;
    let (mut worker, lanes) = (worker(&outbox, true), Lane::all().collect::<Vec<_>>());
    let mut claim = worker.claim(&lanes, Some(&everything(&lanes))).await.unwrap();
    let mut rows = Vec::new();
    claim.next_slice(10_000, 1 << 30, &mut rows).await.unwrap();
    let why = Rejection { reason: "record-too-large", error: "too large".to_owned() };
    let (locked, sent): (Vec<&OutboxRow>, Vec<&OutboxRow>) = rows.iter().partition(|row| row.id() == 500);
    let rejected = vec![RejectedRow { row: locked[0], topic: "order", why: &why }];
    let recorded = sent.iter().map(|row| row.id()).collect();
    let settlement =
        Settlement { sent, rejected, blocked: Vec::new(), held: Vec::new(), around_locks: false };
    assert_eq!(claim.settle(&settlement).await.unwrap(), Settled::Only(recorded));
    let unsent: i64 = outbox.client.query_one(UNSENT, &[]).await.unwrap().get(0);
    assert_eq!(unsent, 1);
    drop(other);
    outbox.drop().await;
}

#[tokio::test]
async fn dropped_claim_frees_its_lanes_and_leaves_the_connection_usable() {
    let outbox = Outbox::without_topics("claims").await;
    run(&outbox.client, ROWS).await;
    let lanes: Vec<Lane> = Lane::all().collect();
    let mut worker = worker(&outbox, true);
    let claim = worker.claim(&lanes, Some(&everything(&lanes))).await.unwrap();
    let first = claim.server();
    drop(claim);
    // Waits for the locks if they still exist.
    run(&outbox.client, "BEGIN; SELECT FROM app.outbox_lane FOR UPDATE; COMMIT").await;
    let claim = worker.claim(&lanes, Some(&everything(&lanes))).await.unwrap();
    assert_eq!((claim.lanes().len(), claim.server()), (64, first));
    claim.release().await.unwrap();
    outbox.drop().await;
}

/// Inserts a row of this key and returns its id.
async fn insert(client: &tokio_postgres::Client, key: &str) -> i64 {
    let sql = "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type) VALUES ('order', $1, 'x') RETURNING id";
    client.query_one(sql, &[&key]).await.unwrap().get(0)
}

/// What a claim that holds these lanes finds. Returns the ids of the rows that it may publish.
async fn read_on(
    claim: &mut impl Claim<Event = OutboxRow>,
    (above, gaps): (i64, &[i64]),
    (hold_version, epoch): (i64, Epoch),
    rows_max: usize,
) -> (Vec<i64>, SearchResult) {
    let mut results = Vec::new();
    for (expects_rows, expects_free) in [(false, false), (false, true), (true, false), (true, true)] {
        let gaps = gaps.to_vec();
        let bytes_max = usize::MAX;
        let search = Search {
            above,
            gaps,
            hold_version,
            epoch,
            excepted: Vec::new(),
            rows_max,
            bytes_max,
            expects_rows,
            expects_free,
        };
        let mut rows = Vec::new();
        let found = claim.read_on(&search, &mut rows).await.unwrap();
        results.push((rows.iter().map(Event::id).collect(), found));
    }
    let first = results.remove(0);
    assert!(
        results.iter().all(|other| *other == first),
        "a wrong guess changed the result: {first:?} {results:?}"
    );
    first
}

#[tokio::test]
async fn flow_finds_new_rows_and_gaps_and_publishes_those_of_its_lanes() {
    let outbox = Outbox::without_topics("flows").await;
    let late = outbox.database.connect().await;
    run(&late, "BEGIN").await;
    let first = insert(&outbox.client, "mine").await;
    let gap = insert(&late, "mine-late").await;
    let all: Vec<Lane> = Lane::all().collect();
    let lane_of = "SELECT (hashtext('other') & 63)::smallint";
    let other: i16 = outbox.client.query_one(lane_of, &[]).await.unwrap().get(0);
    let lanes: Vec<Lane> = all.iter().copied().filter(|lane| lane.number() != other).collect();
    for (prepares, turns) in [(true, 1), (false, 0)] {
        let mut worker = worker(&outbox, prepares);
        let mut claim = worker.claim(&lanes, Some(&everything(&lanes))).await.unwrap();
        let mut rows = Vec::new();
        let slice = claim.next_slice(1, usize::MAX, &mut rows).await.unwrap();
        let under = (slice.hold_version, slice.epoch);
        if turns == 0 {
            let (mine, found) = read_on(&mut claim, (0, &[]), under, 10).await;
            assert!(mine.is_empty() && found.cut, "without prepared statements there are no flows");
            claim.release().await.unwrap();
            continue;
        }
        assert_eq!(rows.iter().map(Event::id).collect::<Vec<_>>(), [first]);
        let (theirs, sent) =
            (insert(&outbox.client, "other").await, insert(&outbox.client, "mine-sent").await);
        let next = insert(&outbox.client, "mine").await;
        run(&outbox.client, &format!("UPDATE app.outbox SET sent_at = now() WHERE id = {sent}")).await;
        let (mine, found) = read_on(&mut claim, (first, &[]), under, 10).await;
        assert_eq!((mine, found.ids.clone()), (vec![next], vec![theirs, sent, next]));
        assert!(!found.cut);
        run(&late, "COMMIT").await;
        let (mine, found) = read_on(&mut claim, (next, &[gap]), under, 10).await;
        assert_eq!((mine, found.ids), (vec![gap], vec![gap]));
        let (mine, found) = read_on(&mut claim, (gap, &[first]), under, 2).await;
        assert_eq!(
            (mine, found.ids, found.cut),
            (vec![first], vec![first, theirs], true),
            "by id, up to the limit"
        );

        run(&outbox.client, "INSERT INTO app.outbox_pause (topic) VALUES ('events.other')").await;
        let (mine, found) = read_on(&mut claim, (gap, &[first]), under, 10).await;
        assert!(mine.is_empty() && found.ids.is_empty() && found.hold_version != under.0, "{found:?}");
        let (mine, found) = read_on(&mut claim, (gap, &[first]), (found.hold_version, found.epoch), 10).await;
        assert_eq!((mine, found.ids.len()), (vec![first, next], 4), "the other topic is paused");
        claim.release().await.unwrap();
    }
    outbox.drop().await;
}

/// The cheap read of a flow returns no contents of large rows, so another one reads them.
#[tokio::test]
async fn flow_reads_large_rows_like_a_claim_and_finds_gaps_at_any_distance() {
    let outbox = Outbox::without_topics("flow_large").await;
    run(
        &outbox.client,
        "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload, headers)
         SELECT 'order', 'order-' || n, 'x',
                CASE n WHEN 300 THEN to_json(repeat('x', 1100000)) WHEN 301 THEN to_json(repeat('y', 10000)) END,
                CASE n WHEN 302 THEN jsonb_build_object('long', repeat('z', 9000)) WHEN 303 THEN '{\"a\": \"b\"}' END
         FROM generate_series(1, 305) AS n",
    )
    .await;
    let lanes: Vec<Lane> = Lane::all().collect();
    let mut worker = worker(&outbox, true);
    let mut claim = worker.claim(&lanes, Some(&everything(&lanes))).await.unwrap();
    let slice = claim.next_slice(1_000, usize::MAX, &mut Vec::new()).await.unwrap();
    let mut seen = Vec::new();
    for (expects_free, gaps) in [(true, vec![2, 290]), (false, vec![290]), (true, vec![290]), (true, vec![])]
    {
        let search = Search {
            excepted: Vec::new(),
            above: 299,
            gaps: gaps.clone(),
            hold_version: slice.hold_version,
            epoch: slice.epoch,
            rows_max: 100,
            bytes_max: usize::MAX,
            expects_rows: true,
            expects_free,
        };
        let mut rows = Vec::new();
        let found = claim.read_on(&search, &mut rows).await.unwrap();
        assert_eq!(found.ids, gaps.into_iter().chain(300..=305).collect::<Vec<_>>());
        assert_eq!(found.ids, rows.iter().map(Event::id).collect::<Vec<_>>());
        let is_large = |row: &OutboxRow| matches!(row.payload(), Payload::TooLarge { .. });
        let shape = |row: &OutboxRow| (row.id(), is_large(row), row.size(), row.headers().map(<[u8]>::len));
        seen.push(rows.iter().filter(|row| row.id() >= 300).map(shape).collect::<Vec<_>>());
    }
    assert_eq!(
        seen[0].iter().map(|row| row.1).collect::<Vec<_>>(),
        [true, false, false, false, false, false]
    );
    assert_eq!((seen[0][2].3, seen[0][3].3), (Some(9_012), Some(10)));
    assert!(seen.iter().all(|rows| *rows == seen[0]), "{seen:?}");
    claim.release().await.unwrap();
    outbox.drop().await;
}

/// The relay checks only at its start that the types are NOT NULL. Without that, a row must not become a tombstone.
#[tokio::test]
async fn flow_reads_a_row_with_a_missing_type_like_a_claim() {
    let outbox = Outbox::without_topics("flow_null").await;
    run(&outbox.client, "ALTER TABLE app.outbox ALTER event_type DROP NOT NULL").await;
    let row = "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload)
               VALUES ('order', 'order-1', NULL, '{\"a\": 1}')";
    run(&outbox.client, row).await;
    let lanes: Vec<Lane> = Lane::all().collect();
    let mut worker = worker(&outbox, true);
    let mut claim = worker.claim(&lanes, Some(&everything(&lanes))).await.unwrap();
    let slice = claim.next_slice(1_000, usize::MAX, &mut Vec::new()).await.unwrap();
    for expects_free in [true, false] {
        let search = Search {
            excepted: Vec::new(),
            above: 0,
            gaps: Vec::new(),
            hold_version: slice.hold_version,
            epoch: slice.epoch,
            rows_max: 100,
            bytes_max: usize::MAX,
            expects_rows: true,
            expects_free,
        };
        let mut rows = Vec::new();
        claim.read_on(&search, &mut rows).await.unwrap();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].payload(), Payload::Bytes(b"{\"a\": 1}"), "expects_free {expects_free}");
        assert_eq!(rows[0].key(), b"order-1");
    }
    claim.release().await.unwrap();
    outbox.drop().await;
}

/// Otherwise a large or damaged row would cost every relay, not only the one that holds its lane.
#[tokio::test]
async fn flow_does_not_read_the_contents_of_rows_of_other_lanes() {
    let outbox = Outbox::without_topics("flow_contents").await;
    run(&outbox.client, "ALTER TABLE app.outbox ALTER payload SET STORAGE EXTERNAL").await;
    run(
        &outbox.client,
        "INSERT INTO app.outbox (aggregate_type, aggregate_id, event_type, payload)
         VALUES ('order', 'other', 'x', to_json(repeat('x', 10000)))",
    )
    .await;
    damage(&outbox).await;
    let lane_of = "SELECT (hashtext('other') & 63)::smallint";
    let other: i16 = outbox.client.query_one(lane_of, &[]).await.unwrap().get(0);
    let (theirs, ours): (Vec<Lane>, Vec<Lane>) = Lane::all().partition(|lane| lane.number() == other);
    let mut under = None;
    for (lanes, reads_it) in [(&ours, false), (&theirs, true)] {
        let mut worker = worker(&outbox, true);
        let mut claim = worker.claim(lanes, None).await.unwrap();
        if under.is_none() {
            claim.read(&everything(lanes)).await.unwrap();
            under = Some(claim.next_slice(1, usize::MAX, &mut Vec::new()).await.unwrap());
        }
        let slice = under.as_ref().unwrap();
        let search = Search {
            excepted: Vec::new(),
            above: 0,
            gaps: Vec::new(),
            hold_version: slice.hold_version,
            epoch: slice.epoch,
            rows_max: 10,
            bytes_max: usize::MAX,
            expects_rows: false,
            expects_free: true,
        };
        let found = claim.read_on(&search, &mut Vec::new()).await;
        assert_eq!(found.is_err(), reads_it, "{found:?}");
        if let Ok(found) = found {
            assert_eq!(found.ids, [1], "the id closes its gap");
            claim.release().await.unwrap();
        }
    }
    outbox.drop().await;
}

/// The server answers the COMMIT of an aborted transaction with success, although nothing is recorded.
#[tokio::test]
async fn commit_of_an_aborted_claim_is_no_success() {
    let outbox = Outbox::without_topics("aborted").await;
    run(&outbox.client, ROWS).await;
    let other = outbox.database.connect().await;
    run(&other, "BEGIN; SELECT FROM app.outbox FOR UPDATE").await;
    for (prepares, promptly) in [(true, true), (true, false), (false, true), (false, false)] {
        let (mut worker, lanes) = (worker(&outbox, prepares), Lane::all().collect::<Vec<_>>());
        let read = everything(&lanes);
        let mut claim = worker.claim(&lanes, promptly.then_some(&read)).await.unwrap();
        if !promptly {
            claim.read(&read).await.unwrap();
        }
        let mut rows = Vec::new();
        claim.next_slice(10_000, 1 << 30, &mut rows).await.unwrap();
        let fault = claim.record_sent(&rows.iter().collect::<Vec<_>>()).await.unwrap_err();
        assert_eq!(fault.kind, FaultKind::Contended, "{fault}");
        let nothing =
            Settlement { sent: vec![], rejected: vec![], blocked: vec![], held: vec![], around_locks: true };
        let settled = claim.settle(&nothing).await;
        assert!(settled.is_err(), "prepares {prepares}, promptly {promptly}: {settled:?}");
    }
    drop(other);
    outbox.drop().await;
}
