//! The marks after reads, settlements, sweeps and changes of the server.

use super::*;

const SERVER: ServerId = ServerId { connection: 1, started_us: 1, backend: 1 };
const BASIS: i64 = 77;
/// A hold has ended.
const NEXT_BASIS: i64 = (1 << 32) | BASIS;

fn lane() -> Lane {
    Lane::new(5).unwrap()
}

fn fenced(high: i64) -> Marks {
    let mut marks = Marks::new();
    marks.note_server(SERVER);
    marks.note_basis(marks.epoch(), BASIS);
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
    marks.raise(&snapshot, BASIS, &[read_to_the_end()]);
    assert_eq!(marks.low(lane()), 50);
}

#[test]
fn a_mark_stays_below_the_first_open_row_and_at_the_cut() {
    let mut marks = fenced(50);
    let snapshot = marks.snapshot(&[lane()]);
    marks.raise(&snapshot, BASIS, &[Coverage { first_open: Some(31), ..read_to_the_end() }]);
    assert_eq!(marks.low(lane()), 30);
    marks.raise(&snapshot, BASIS, &[Coverage { cut: true, last_read: Some(40), ..read_to_the_end() }]);
    assert_eq!(marks.low(lane()), 40);
}

#[test]
fn a_read_that_was_sent_before_the_fence_passed_raises_nothing() {
    let mut marks = fenced(50);
    marks.list_writers(80, writer(1));
    let snapshot = marks.snapshot(&[lane()]);
    marks.list_writers(80, Vec::new());
    marks.raise(&snapshot, BASIS, &[read_to_the_end()]);
    assert_eq!(marks.low(lane()), 50, "the read began under the older fence");
}

/// Marks of 50, then of 80 without a transaction that stays open.
async fn excepting() -> (Marks, MarksSnapshot) {
    let mut marks = fenced(50);
    marks.list_writers(80, writer(7));
    tokio::time::advance(std::time::Duration::from_secs(1)).await;
    marks.list_writers(80, writer(7));
    let snapshot = marks.snapshot(&[lane()]);
    assert_eq!((snapshot.excepted.xids.clone(), snapshot.excepted.floor), (vec![7], 50));
    marks.raise(&snapshot, BASIS, &[read_to_the_end()]);
    assert_eq!(marks.low(lane()), 80);
    (marks, snapshot)
}

#[tokio::test(start_paused = true)]
async fn the_end_of_an_excepted_transaction_lowers_the_marks_below_its_rows() {
    let (mut marks, snapshot) = excepting().await;
    marks.list_writers(90, Vec::new());
    marks.list_writers(90, Vec::new()); // two lists in a row lack it
    assert_eq!(marks.low(lane()), 50);
    marks.raise(&snapshot, BASIS, &[read_to_the_end()]);
    assert_eq!(marks.low(lane()), 50, "the read was sent before");
    let snapshot = marks.snapshot(&[lane()]);
    assert!(snapshot.excepted.xids.is_empty());
    marks.raise(&snapshot, BASIS, &[read_to_the_end()]);
    assert_eq!(marks.low(lane()), 90);
}

#[tokio::test(start_paused = true)]
async fn a_sweep_that_finds_a_row_of_an_excepted_transaction_only_lowers_the_mark() {
    let (mut marks, _) = excepting().await;
    let other = Lane::new(6).unwrap();
    let snapshot = marks.snapshot(&[other]);
    marks.raise(&snapshot, BASIS, &[Coverage { lane: other, ..read_to_the_end() }]);
    let epoch = marks.epoch();
    assert_eq!(sweep(&mut marks, &[lane(), other], &[(lane(), 60), (other, 70)]), Swept::Clean);
    assert_eq!((marks.low(lane()), marks.low(other), marks.epoch()), (59, 69, epoch));
    assert_eq!(sweep(&mut marks, &[lane()], &[(lane(), 50)]), Swept::Reset, "below its rows");
}

#[test]
fn a_scan_raises_the_marks_and_h() {
    let mut marks = Marks::new();
    marks.note_server(SERVER);
    let other = Lane::new(6).unwrap();
    let lanes = [lane(), other];
    let snapshot = marks.snapshot(&lanes);
    marks.scanned(&snapshot, BASIS, &lanes, &[(other, 31)]);
    assert_eq!((marks.highest_read(), marks.low(lane())), (31, LOWEST), "no fence had passed");
    marks.list_writers(31, Vec::new());
    let snapshot = marks.snapshot(&lanes);
    marks.scanned(&snapshot, BASIS, &lanes, &[(other, 20)]);
    assert_eq!((marks.low(lane()), marks.low(other)), (31, 19));
    marks.scanned(&snapshot, NEXT_BASIS, &lanes, &[]);
    assert_eq!(
        (marks.low(lane()), marks.low(other)),
        (31, 31),
        "it began at the smallest id, because a hold ended"
    );
}

#[test]
fn the_end_of_a_hold_invalidates_every_mark() {
    let mut marks = fenced(50);
    marks.note_ids(marks.epoch(), [7]);
    let snapshot = marks.snapshot(&[lane()]);
    marks.raise(&snapshot, BASIS, &[read_to_the_end()]);
    assert!(!marks.are_for(NEXT_BASIS), "events that waited may be below the marks");
    marks.note_basis(marks.epoch(), NEXT_BASIS);
    assert_eq!(marks.highest_read(), 7, "H stays");
    assert_eq!(marks.low(lane()), LOWEST);
    marks.raise(&snapshot, BASIS, &[read_to_the_end()]);
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
    marks.raise(&snapshot, BASIS, &coverage);
    assert_eq!(marks.swept(&lanes, &snapshot, &found), Swept::Clean);
    assert_eq!(marks.low(lane()), 50);
}

#[test]
fn another_server_invalidates_everything() {
    let mut marks = fenced(50);
    let snapshot = marks.snapshot(&[lane()]);
    marks.note_server(ServerId { connection: 1, started_us: 2, backend: 1 });
    marks.note_basis(marks.epoch(), BASIS);
    marks.raise(&snapshot, BASIS, &[read_to_the_end()]);
    assert_eq!(marks.low(lane()), LOWEST, "a late answer of the old server raised a mark");
    assert_eq!(marks.snapshot(&[lane()]).fenced, LOWEST);
}

#[test]
fn a_row_reset_to_unsent_while_its_lane_is_claimed_is_not_hidden_again() {
    let mut marks = fenced(50);
    let snapshot = marks.snapshot(&[lane()]);
    marks.raise(&snapshot, BASIS, &[Coverage { first_open: Some(4), ..read_to_the_end() }]);
    assert_eq!(sweep(&mut marks, &[lane()], &[(lane(), 2)]), Swept::Reset, "one row was reset");
    marks.raise(&snapshot, BASIS, &[read_to_the_end()]);
    assert_eq!(marks.low(lane()), LOWEST);
}

#[test]
fn another_file_of_the_table_invalidates_h_and_the_fence_too() {
    let mut marks = fenced(50);
    marks.note_ids(marks.epoch(), [90]);
    let snapshot = marks.snapshot(&[lane()]);
    let old = marks.epoch();
    marks.note_basis(old, BASIS + 1);
    assert_ne!(marks.epoch(), old, "results of older reads are ignored");
    assert_eq!((marks.highest_read(), marks.snapshot(&[lane()]).fenced), (LOWEST, LOWEST));
    marks.raise(&snapshot, BASIS + 1, &[read_to_the_end()]);
    assert_eq!(marks.low(lane()), LOWEST);
    let epoch = marks.epoch();
    marks.note_server(SERVER);
    assert_eq!(marks.epoch(), epoch, "the server is known");
}

#[test]
fn rows_below_the_marks_of_two_lanes_or_twice_of_the_same_lane_invalidate_everything() {
    let other = Lane::new(6).unwrap();
    let raised = || {
        let mut marks = fenced(50);
        let snapshot = marks.snapshot(&[lane(), other]);
        marks.raise(&snapshot, BASIS, &[read_to_the_end(), Coverage { lane: other, ..read_to_the_end() }]);
        marks
    };
    let mut marks = raised();
    assert_eq!(sweep(&mut marks, &[lane(), other], &[(lane(), 3), (other, 50)]), Swept::Forgotten);
    assert_eq!((marks.low(lane()), marks.snapshot(&[]).fenced), (LOWEST, LOWEST));

    let mut marks = raised();
    let found = [(lane(), 3), (other, 51)];
    assert_eq!(sweep(&mut marks, &[lane(), other], &found), Swept::Reset, "one is above its mark");
    let snapshot = marks.snapshot(&[lane()]);
    marks.raise(&snapshot, BASIS, &[read_to_the_end()]);
    assert_eq!(sweep(&mut marks, &[lane()], &[(lane(), 4)]), Swept::Forgotten);

    let mut marks = raised();
    assert_eq!(sweep(&mut marks, &[lane()], &[(lane(), 3)]), Swept::Reset);
    assert_eq!(sweep(&mut marks, &[lane()], &[]), Swept::Clean);
    let snapshot = marks.snapshot(&[lane()]);
    marks.raise(&snapshot, BASIS, &[read_to_the_end()]);
    assert_eq!(
        sweep(&mut marks, &[lane()], &[(lane(), 4)]),
        Swept::Reset,
        "there was a clean sweep in between"
    );
}
