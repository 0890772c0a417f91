//! The thread of the consumer, which records every event from Kafka in the ledger.

use super::ledger::{SharedLedger, fingerprint};
use super::verdict::Arrived;
use outbox_bench::kafka::consume::{Consumer, Record};
use outbox_relay::kafka::publishing::record::EVENT_ID;
use outbox_relay::relay::failure::KafkaFailure;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use uuid::Uuid;

const WAIT: Duration = Duration::from_millis(50);
/// The time within which the rest is read after the relay has ended.
const REST: Duration = Duration::from_secs(10);

/// A running consumer.
pub(super) struct Reader {
    ending: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Reader {
    /// Starts reading.
    pub(super) fn start(
        bootstrap_servers: &str,
        topics: &[&str],
        ledger: SharedLedger,
    ) -> Result<Reader, KafkaFailure> {
        let mut consumer = Consumer::from_the_start(bootstrap_servers, topics)?;
        let ending = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&ending);
        let thread = std::thread::spawn(move || read(&mut consumer, &ledger, &asked));
        Ok(Reader { ending, thread })
    }

    /// Reads everything that Kafka has at this time, so that no late duplicate is missed. Blocks.
    pub(super) fn finish(self) {
        self.ending.store(true, Ordering::Release);
        // A panic of that thread has already been reported. Events that it did not read count as lost.
        _ = self.thread.join();
    }
}

fn read(consumer: &mut Consumer, ledger: &SharedLedger, ending: &AtomicBool) {
    let mut deadline = None;
    loop {
        match consumer.next(WAIT) {
            Ok(Some(record)) => {
                let at = Instant::now();
                ledger.lock().received(arrived(&record), at);
                continue;
            }
            Ok(None) => {}
            Err(failure) => ledger.lock().fault(format!("the consumer: {failure}")),
        }
        if ending.load(Ordering::Acquire) {
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + REST);
            if Instant::now() > deadline || matches!(consumer.is_at_end(), Ok(true)) {
                return;
            }
        }
    }
}

/// A record without a readable id belongs to no event.
fn arrived(record: &Record) -> Arrived {
    let event_id = record.header(EVENT_ID).and_then(|id| id.parse().ok()).unwrap_or(Uuid::nil());
    Arrived {
        event_id,
        topic: record.topic.clone(),
        partition: record.partition,
        key: String::from_utf8_lossy(record.key.as_deref().unwrap_or_default()).into_owned(),
        payload: fingerprint(record.payload.as_deref().unwrap_or_default()),
    }
}
