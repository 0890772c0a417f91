//! The marks after reads, settlements, sweeps and changes of the server.

use super::*;
use tokio::time::advance;

const SERVER: ServerId = ServerId { connection: 1, started_us: 1, backend: 1 };
const EPOCH: Epoch = Epoch { table_file: 77, ended: 0 };
/// A hold has ended.
const NEXT_EPOCH: Epoch = Epoch { ended: 1, ..EPOCH };

fn lane() -> Lane {
    Lane::new(5).unwrap()
}

fn fenced(high: i64) -> Marks {
    let mut marks = Marks::new();
    marks.note_server(SERVER);
    marks.note_epoch(marks.generation, EPOCH);
    marks.list_writers(high, Vec::new());
    marks
}

fn writer(xid: i64) -> Vec<Writer> {
    vec![Writer { name: format!("3/{xid}"), xid: Some(xid) }]
}

fn read_to_the_end() -> Coverage {
    Coverage { lane: lane(), last_read: Some(90), first_open: None, cut: false, used_share: false }
}

#[test]
fn a_mark_rises_to_the_fence_and_no_further() {
    let mut marks = fenced(50);
    let snapshot = marks.snapshot(&[lane()]);
    marks.raise(&snapshot, EPOCH, &[read_to_the_end()]);
    assert_eq!(marks.low(lane()), 50);
}

#[test]
fn a_mark_stays_below_the_first_open_row_and_at_the_cut() {
    let mut marks = fenced(50);
    let snapshot = marks.snapshot(&[lane()]);
    marks.raise(&snapshot, EPOCH, &[Coverage { first_open: Some(31), ..read_to_the_end() }]);
    assert_eq!(marks.low(lane()), 30);
    marks.raise(&snapshot, EPOCH, &[Coverage { cut: true, last_read: Some(40), ..read_to_the_end() }]);
    assert_eq!(marks.low(lane()), 40);
}

#[test]
fn a_read_that_was_sent_before_the_fence_passed_raises_nothing() {
    let mut marks = fenced(50);
    marks.list_writers(80, writer(1));
    let snapshot = marks.snapshot(&[lane()]);
    marks.list_writers(80, Vec::new());
    marks.raise(&snapshot, EPOCH, &[read_to_the_end()]);
    assert_eq!(marks.low(lane()), 50, "the read began under the older fence");
}

/// Marks of 50, then of 80 without a transaction that stays open.
async fn excepting() -> (Marks, MarksSnapshot) {
    let mut marks = fenced(50);
    marks.list_writers(80, writer(7));
    advance(Duration::from_secs(1)).await;
    marks.list_writers(80, writer(7));
    let snapshot = marks.snapshot(&[lane()]);
    assert_eq!((snapshot.excepted.xids.clone(), snapshot.excepted.floor), (vec![7], 50));
    marks.raise(&snapshot, EPOCH, &[read_to_the_end()]);
    assert_eq!(marks.low(lane()), 80);
    (marks, snapshot)
}

#[tokio::test(start_paused = true)]
async fn the_end_of_an_excepted_transaction_lowers_the_marks_below_its_rows() {
    let (mut marks, snapshot) = excepting().await;
    marks.list_writers(90, Vec::new());
    marks.list_writers(90, Vec::new()); // two lists in a row lack it
    assert_eq!(marks.low(lane()), 50);
    marks.raise(&snapshot, EPOCH, &[read_to_the_end()]);
    assert_eq!(marks.low(lane()), 50, "the read was sent before");
    let snapshot = marks.snapshot(&[lane()]);
    assert!(snapshot.excepted.xids.is_empty());
    marks.raise(&snapshot, EPOCH, &[read_to_the_end()]);
    assert_eq!(marks.low(lane()), 90);
}

#[tokio::test(start_paused = true)]
async fn a_sweep_that_finds_a_row_of_an_excepted_transaction_only_lowers_the_mark() {
    let (mut marks, _) = excepting().await;
    let other = Lane::new(6).unwrap();
    let snapshot = marks.snapshot(&[other]);
    marks.raise(&snapshot, EPOCH, &[Coverage { lane: other, ..read_to_the_end() }]);
    let generation = marks.generation;
    assert_eq!(sweep(&mut marks, &[lane(), other], &[(lane(), 60), (other, 70)]), Swept::Clean);
    assert_eq!((marks.low(lane()), marks.low(other), marks.generation), (59, 69, generation));
    assert_eq!(sweep(&mut marks, &[lane()], &[(lane(), 50)]), Swept::Reset, "below its rows");
}

#[test]
fn a_scan_raises_the_marks_and_h() {
    let mut marks = Marks::new();
    marks.note_server(SERVER);
    let other = Lane::new(6).unwrap();
    let lanes = [lane(), other];
    let snapshot = marks.snapshot(&lanes);
    marks.scanned(&snapshot, &lanes, &scan(EPOCH, &[(other, 31)], &[]));
    assert_eq!((marks.highest_read, marks.low(lane())), (31, LOWEST), "no fence had passed");
    marks.list_writers(31, Vec::new());
    let snapshot = marks.snapshot(&lanes);
    marks.scanned(&snapshot, &lanes, &scan(EPOCH, &[(other, 20)], &[]));
    assert_eq!((marks.low(lane()), marks.low(other)), (31, 19));
    marks.scanned(&snapshot, &lanes, &scan(NEXT_EPOCH, &[], &[]));
    assert_eq!(
        (marks.low(lane()), marks.low(other)),
        (31, 31),
        "it began at the smallest id, because a hold ended"
    );
}

/// The first rows of a lane are held, and more than a scan reads.
#[test]
fn the_next_scan_continues_where_one_has_read_only_hidden_rows() {
    let mut marks = fenced(50);
    let lanes = [lane(), Lane::new(6).unwrap()];
    let scanned = |marks: &mut Marks, epoch, first_unsent: &[(Lane, i64)], hidden_to: &[(Lane, i64)]| {
        marks.scanned(&marks.snapshot(&lanes), &lanes, &scan(epoch, first_unsent, hidden_to))
    };
    assert!(scanned(&mut marks, EPOCH, &[], &[(lane(), 40)]));
    assert_eq!((marks.low(lane()), marks.low(lanes[1]), marks.highest_read), (40, 50, 40));
    assert!(scanned(&mut marks, EPOCH, &[], &[(lane(), 80)]));
    assert_eq!((marks.low(lane()), marks.may_claim(lane())), (50, false), "the fence has not passed 80");
    assert!(!scanned(&mut marks, EPOCH, &[], &[(lane(), 80)]), "the next one has to read more");
    marks.list_writers(marks.highest_read, Vec::new());
    assert!(scanned(&mut marks, EPOCH, &[(lane(), 85)], &[]));
    assert_eq!((marks.low(lane()), marks.may_claim(lane()), marks.may_claim(lanes[1])), (80, true, true));
    // A hold of another topic ends, so scans begin at the smallest id again.
    assert!(scanned(&mut marks, NEXT_EPOCH, &[], &[(lane(), 40)]));
    assert_eq!((marks.low(lane()), marks.may_claim(lane())), (40, false));
    marks.note_server(ServerId { backend: 2, ..SERVER });
    assert!(!marks.may_claim(lane()), "the rows are probably still held");
    assert!(scanned(&mut marks, NEXT_EPOCH, &[(lane(), 1)], &[]));
    assert!(marks.may_claim(lane()), "the hold has ended");
}

fn scan(epoch: Epoch, first_unsent: &[(Lane, i64)], hidden_to: &[(Lane, i64)]) -> Scan {
    let newest_hidden = hidden_to.iter().map(|(_, id)| *id).max();
    let (first_unsent, hidden_to) = (first_unsent.to_vec(), hidden_to.to_vec());
    Scan { server: SERVER, epoch, first_unsent, hidden_to, newest_hidden }
}

#[test]
fn the_end_of_a_hold_invalidates_every_mark() {
    let mut marks = fenced(50);
    marks.note_ids(marks.generation, [7]);
    let snapshot = marks.snapshot(&[lane()]);
    marks.raise(&snapshot, EPOCH, &[read_to_the_end()]);
    assert_ne!(marks.epoch, NEXT_EPOCH, "events that waited may be below the marks");
    marks.note_epoch(marks.generation, NEXT_EPOCH);
    assert_eq!(marks.highest_read, 7, "H stays");
    assert_eq!(marks.low(lane()), LOWEST);
    marks.raise(&snapshot, EPOCH, &[read_to_the_end()]);
    assert_eq!(marks.low(lane()), LOWEST, "a read from before the end raises nothing");
}

/// A sweep during which no mark changes.
fn sweep(marks: &mut Marks, lanes: &[Lane], first_unsent: &[(Lane, i64)]) -> Swept {
    let snapshot = marks.snapshot(lanes);
    marks.swept(lanes, &snapshot, first_unsent)
}

#[test]
fn marks_that_were_raised_during_a_sweep_are_not_compared_with_its_rows() {
    let mut marks = fenced(50);
    let other = Lane::new(6).unwrap();
    let lanes = [lane(), other];
    let snapshot = marks.snapshot(&lanes);
    // The sweep reads two unsent rows. They are settled before its answer arrives.
    let found = [(lane(), 3), (other, 4)];
    let coverage = [read_to_the_end(), Coverage { lane: other, ..read_to_the_end() }];
    marks.raise(&snapshot, EPOCH, &coverage);
    assert_eq!(marks.swept(&lanes, &snapshot, &found), Swept::Clean);
    assert_eq!(marks.low(lane()), 50);
}

#[test]
fn another_server_invalidates_everything() {
    let mut marks = fenced(50);
    let snapshot = marks.snapshot(&[lane()]);
    marks.note_server(ServerId { connection: 1, started_us: 2, backend: 1 });
    marks.note_epoch(marks.generation, EPOCH);
    marks.raise(&snapshot, EPOCH, &[read_to_the_end()]);
    assert_eq!(marks.low(lane()), LOWEST, "a late answer of the old server raised a mark");
    assert_eq!(marks.snapshot(&[lane()]).fenced, LOWEST);
}

#[test]
fn a_row_reset_to_unsent_while_its_lane_is_claimed_is_not_hidden_again() {
    let mut marks = fenced(50);
    let snapshot = marks.snapshot(&[lane()]);
    marks.raise(&snapshot, EPOCH, &[Coverage { first_open: Some(4), ..read_to_the_end() }]);
    assert_eq!(sweep(&mut marks, &[lane()], &[(lane(), 2)]), Swept::Reset, "one row was reset");
    marks.raise(&snapshot, EPOCH, &[read_to_the_end()]);
    assert_eq!(marks.low(lane()), LOWEST);
}

#[test]
fn another_file_of_the_table_invalidates_h_and_the_fence_too() {
    let mut marks = fenced(50);
    marks.note_ids(marks.generation, [90]);
    let snapshot = marks.snapshot(&[lane()]);
    let old = marks.generation;
    marks.note_epoch(old, Epoch { table_file: 78, ..EPOCH });
    assert_ne!(marks.generation, old, "results of older reads are ignored");
    assert_eq!((marks.highest_read, marks.snapshot(&[lane()]).fenced), (LOWEST, LOWEST));
    marks.raise(&snapshot, Epoch { table_file: 78, ..EPOCH }, &[read_to_the_end()]);
    assert_eq!(marks.low(lane()), LOWEST);
    let generation = marks.generation;
    marks.note_server(SERVER);
    assert_eq!(marks.generation, generation, "the server is known");
}

#[tokio::test(start_paused = true)]
async fn rows_below_the_marks_of_two_lanes_or_twice_within_an_hour_invalidate_everything() {
    let other = Lane::new(6).unwrap();
    let raised = || {
        let mut marks = fenced(50);
        let snapshot = marks.snapshot(&[lane(), other]);
        marks.raise(&snapshot, EPOCH, &[read_to_the_end(), Coverage { lane: other, ..read_to_the_end() }]);
        marks
    };
    let mut marks = raised();
    assert_eq!(sweep(&mut marks, &[lane(), other], &[(lane(), 3), (other, 50)]), Swept::Forgotten);
    assert_eq!((marks.low(lane()), marks.snapshot(&[]).fenced), (LOWEST, LOWEST));

    let mut marks = raised();
    let found = [(lane(), 3), (other, 51)];
    assert_eq!(sweep(&mut marks, &[lane(), other], &found), Swept::Reset, "one is above its mark");
    let snapshot = marks.snapshot(&[lane()]);
    marks.raise(&snapshot, EPOCH, &[read_to_the_end()]);
    assert_eq!(sweep(&mut marks, &[lane()], &[(lane(), 4)]), Swept::Forgotten);

    let mut marks = raised();
    assert_eq!(sweep(&mut marks, &[lane()], &[(lane(), 3)]), Swept::Reset);
    assert_eq!(sweep(&mut marks, &[lane()], &[]), Swept::Clean);
    let snapshot = marks.snapshot(&[lane()]);
    marks.raise(&snapshot, EPOCH, &[read_to_the_end()]);
    advance(RESETS_WITHIN).await;
    assert_eq!(sweep(&mut marks, &[lane()], &[(lane(), 4)]), Swept::Reset);
    advance(RESETS_WITHIN / 2).await;
    assert_eq!(
        sweep(&mut marks, &[lane(), other], &[(other, 3)]),
        Swept::Reset,
        "ids that are reset need not ascend"
    );
    let snapshot = marks.snapshot(&[other]);
    marks.raise(&snapshot, EPOCH, &[Coverage { lane: other, ..read_to_the_end() }]);
    assert_eq!(sweep(&mut marks, &[lane(), other], &[(other, 4)]), Swept::Forgotten);
}

fn holders<const N: usize>(names: [(&str, i64); N]) -> Vec<Writer> {
    names.map(|(name, xid)| Writer { name: name.to_owned(), xid: (xid > 0).then_some(xid) }).into()
}

#[tokio::test(start_paused = true)]
async fn it_passes_when_every_holder_of_the_list_has_ended_despite_later_ones() {
    let mut fence = Fence::new();
    assert_eq!(fence.list(10, holders([("3/7", 1), ("4/9", 2)])), None);
    assert_eq!(fence.passed, i64::MIN);
    assert_eq!(fence.list(20, holders([("4/9", 2), ("5/1", 3)])), None);
    assert_eq!(fence.passed, i64::MIN);
    assert_eq!(fence.list(20, holders([("5/1", 3), ("4/10", 4)])), None);
    assert_eq!(fence.passed, 10, "the H of its list counts");
}

#[tokio::test(start_paused = true)]
async fn it_passes_at_once_without_holders() {
    let mut fence = Fence::new();
    _ = fence.list(10, holders([]));
    assert_eq!((fence.passed, fence.is_pending()), (10, false));
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_was_prepared_in_between_has_not_ended() {
    let mut fence = Fence::new();
    _ = fence.list(10, holders([("3/7", 0)]));
    _ = fence.list(10, holders([("-1/800", 0)]));
    assert_eq!(fence.passed, i64::MIN);
    _ = fence.list(10, holders([("-1/800", 0), ("-1/801", 0)]));
    assert_eq!(fence.passed, i64::MIN);
    _ = fence.list(10, holders([("-1/801", 0)]));
    assert_eq!(fence.passed, 10, "801 was prepared when no session of the list was left");
}

#[tokio::test(start_paused = true)]
async fn it_passes_without_a_transaction_that_stays_open() {
    let mut fence = Fence::new();
    _ = fence.list(5, holders([]));
    _ = fence.list(10, holders([("3/7", 70), ("4/9", 0)]));
    advance(EXCEPTED_AFTER).await;
    _ = fence.list(20, holders([("3/7", 70), ("4/9", 0)]));
    assert_eq!(fence.passed, 5, "one has no transaction id yet");
    assert_eq!(fence.excepted(), Excepted::none());
    _ = fence.list(20, holders([("3/7", 70)]));
    assert_eq!(fence.passed, 10);
    assert_eq!(fence.excepted(), Excepted { xids: vec![70], floor: 5, ended: 0 });
    _ = fence.list(20, holders([("3/7", 70)]));
    assert_eq!(fence.passed, 20, "the next fence does not wait for it");
    assert_eq!(fence.list(30, holders([("-1/70", 70)])), None, "a prepared transaction keeps its id");
    assert_eq!(fence.list(30, holders([("3/7", 0)])), None, "its locks may be about to move");
    assert_eq!(fence.list(30, holders([("-1/70", 70)])), None);
    assert_eq!(fence.list(40, holders([])), None, "the next list decides");
    assert_eq!(fence.list(40, holders([("5/2", 71)])), Some(5), "it has ended");
    assert!(fence.is_pending());
    assert_eq!(fence.excepted(), Excepted { ended: 1, ..Excepted::none() });
}

#[tokio::test(start_paused = true)]
async fn the_floor_is_below_the_rows_of_every_excepted_transaction() {
    let mut fence = Fence::new();
    for (high, xid) in [(10, 70), (20, 90)] {
        let open = holders([("3/7", 70), ("4/9", xid)]);
        _ = fence.list(high, open.clone());
        advance(EXCEPTED_AFTER).await;
        _ = fence.list(high, open);
    }
    assert_eq!(fence.excepted(), Excepted { xids: vec![70, 90], floor: i64::MIN, ended: 0 });
    assert_eq!(fence.list(30, holders([("4/9", 90)])), None);
    assert_eq!(fence.list(30, holders([("4/9", 90)])), Some(i64::MIN));
    assert_eq!(fence.excepted(), Excepted { xids: vec![90], floor: 10, ended: 1 });
}

#[tokio::test(start_paused = true)]
async fn it_waits_if_too_many_transactions_stay_open() {
    let open = |count: i64| (0..count).map(|n| Writer { name: format!("{n}/1"), xid: Some(n) }).collect();
    let mut fence = Fence::new();
    _ = fence.list(10, open(EXCEPTED_MAX as i64 + 1));
    advance(EXCEPTED_AFTER).await;
    _ = fence.list(10, open(EXCEPTED_MAX as i64 + 1));
    assert_eq!((fence.passed, fence.excepted()), (i64::MIN, Excepted::none()));
    _ = fence.list(10, open(EXCEPTED_MAX as i64));
    assert_eq!(fence.passed, 10);
}

fn seen(ids: &[i64]) -> SeenIds {
    let mut seen = SeenIds::new(FLOW_GAPS_MAX);
    seen.add(ids.iter().copied());
    seen
}

#[test]
fn an_id_between_seen_ids_is_a_gap_until_it_is_seen() {
    let mut seen = seen(&[3]);
    assert!(seen.pass(3));
    seen.add([8, 5]);
    assert_eq!((seen.highest, seen.gaps()), (8, vec![4, 6, 7]));
    seen.add([6]);
    assert_eq!((seen.highest, seen.gaps()), (8, vec![4, 7]));
}

#[test]
fn ids_before_the_first_seen_id_are_unknown_until_the_fence_passes_it() {
    let mut seen = seen(&[7, 9]);
    assert!(!seen.pass(8), "row 8 may be uncommitted");
    assert!(seen.pass(9));
    seen.add([11]);
    assert_eq!(seen.gaps(), [10]);
}

#[test]
fn the_fence_removes_gaps() {
    let mut seen = seen(&[1]);
    seen.add([4, 7]);
    assert!(seen.pass(3));
    assert_eq!(seen.gaps(), [5, 6]);
    assert!(seen.pass(9), "the fence may be above all ids that this relay saw");
    assert_eq!((seen.highest, seen.gaps()), (9, vec![]));
}

#[test]
fn too_many_gaps_are_unknown_ids() {
    let mut seen = seen(&[1]);
    assert!(seen.pass(1));
    seen.add([2 + FLOW_GAPS_MAX as i64]);
    assert_eq!(seen.gaps().len(), FLOW_GAPS_MAX);
    assert!(seen.pass(1));
    seen.add([4 + FLOW_GAPS_MAX as i64]);
    assert_eq!(seen.gaps(), [0; 0]);
    assert!(!seen.pass(1));
    assert!(seen.pass(4 + FLOW_GAPS_MAX as i64));
    assert!(!SeenIds::new(FLOW_GAPS_MAX).pass(i64::MIN));
    seen.add([i64::MAX]);
    assert!(!seen.pass(5_000), "one very large id");
}
