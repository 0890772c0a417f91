//! When the page reads the database.

use super::fixture;
use crate::admin::page::{CURRENT, FRESH, Facts, PATIENCE, PATIENCE_FIRST, Snapshot, UNWATCHED};
use futures_util::future::join_all;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{Instant, advance, sleep};

#[derive(Default)]
struct FakeSource {
    reads: Cell<usize>,
    closed: Rc<Cell<usize>>,
    takes: Cell<Duration>,
    fault: RefCell<Option<String>>,
}

/// Counts when it is closed.
struct Connection(Rc<Cell<usize>>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

impl FakeSource {
    async fn read(&self, open: Option<Connection>) -> Result<(Connection, Snapshot), String> {
        sleep(self.takes.get()).await;
        self.reads.set(self.reads.get() + 1);
        match self.fault.borrow().clone() {
            Some(fault) => Err(fault),
            None => Ok((open.unwrap_or(Connection(self.closed.clone())), fixture::snapshot())),
        }
    }
}

/// Runs `viewing` next to the reader.
async fn while_reading(source: &FakeSource, facts: &Facts, viewing: impl Future<Output = ()>) {
    tokio::select! {
        never = facts.keep(async |open| source.read(open).await) => match never {},
        () = viewing => {}
    }
}

#[tokio::test(start_paused = true)]
async fn many_viewers_cost_one_reading_every_few_seconds() {
    let (source, facts) = (FakeSource::default(), Facts::default());
    source.takes.set(Duration::from_millis(20));
    while_reading(&source, &facts, async {
        let pages = join_all((0..100).map(|_| facts.current())).await;
        assert!(pages.iter().all(|page| page.last.is_some()), "each page shows the result");
        assert_eq!(source.reads.get(), 1);
        for _ in 0..100 {
            facts.current().await;
            advance(Duration::from_millis(10)).await;
        }
        assert_eq!(source.reads.get(), 1, "it is still fresh");
        advance(FRESH).await;
        join_all((0..100).map(|_| facts.current())).await;
        assert_eq!(source.reads.get(), 2);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn page_does_not_wait_for_a_slow_server() {
    let (source, facts) = (FakeSource::default(), Facts::default());
    source.takes.set(Duration::from_secs(10));
    while_reading(&source, &facts, async {
        let begun = Instant::now();
        assert!(facts.current().await.last.is_none());
        assert!(begun.elapsed() < PATIENCE_FIRST * 2, "{:?}", begun.elapsed());
        sleep(Duration::from_secs(15)).await;
        // The result of the first reading is shown while the second one runs.
        let begun = Instant::now();
        assert!(facts.current().await.last.is_some());
        assert!(begun.elapsed() < PATIENCE * 2, "{:?}", begun.elapsed());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_returning_viewer_waits_for_a_new_reading() {
    let (source, facts) = (FakeSource::default(), Facts::default());
    source.takes.set(PATIENCE * 10);
    while_reading(&source, &facts, async {
        let first = facts.current().await.read;
        sleep(CURRENT).await;
        assert!(facts.current().await.read > first, "the old reading is not current");
        assert_eq!(source.reads.get(), 2);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn failed_reading_keeps_the_last_result_and_is_not_repeated_for_each_viewer() {
    let (source, facts) = (FakeSource::default(), Facts::default());
    while_reading(&source, &facts, async {
        facts.current().await;
        source.fault.replace(Some("connecting: refused".to_owned()));
        advance(FRESH).await;
        let page = facts.current().await;
        assert!(page.last.is_some());
        assert_eq!(page.fault.as_deref(), Some("connecting: refused"));
        facts.current().await;
        assert_eq!(source.reads.get(), 2);
        source.fault.replace(None);
        advance(FRESH).await;
        assert_eq!(facts.current().await.fault, None);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_read_and_no_connection_is_kept_while_no_one_looks() {
    let (source, facts) = (FakeSource::default(), Facts::default());
    while_reading(&source, &facts, async {
        facts.current().await;
        sleep(UNWATCHED * 100).await;
        assert_eq!((source.reads.get(), source.closed.get()), (1, 1));
        let page = facts.current().await;
        assert!(page.last.is_some(), "the first page waits for a new reading");
        assert_eq!(source.reads.get(), 2);
    })
    .await;
}
