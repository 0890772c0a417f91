//! The two sides of the relay in memory: an outbox with a number of rows, and a Kafka cluster that acknowledges at once.

use crate::load::Shape;
use outbox_relay::relay::failure::{KafkaFailure, PostgresFault};
use outbox_relay::relay::lanes::Lane;
use outbox_relay::relay::lanes::marks::{MarksSnapshot, Writer};
use outbox_relay::relay::lanes::scout::{Look, Looked, Scan, ScoutQueries};
use outbox_relay::relay::outbox::{
    Claim, Epoch, Event, Head, Outbox, Payload, ReadEnd, ReadRequest, Search, SearchResult, ServerId,
    Settled, Settlement, Slice,
};
use outbox_relay::relay::publisher::{DeliveryReport, Judged, NotSent, Producer, Publisher};
use std::cell::Cell;
use std::hint::black_box;
use std::rc::Rc;
use std::time::Duration;
use uuid::Uuid;

/// The number of different payloads. More of them would only fill the CPU cache, and rows from a socket do not do that
/// either.
const PAYLOADS: u64 = 512;
const KEYS_MAX: u64 = 10_000;
const SERVER: ServerId = ServerId { connection: 1, started_us: 1, backend: 1 };

/// The remaining rows, shared by all workers.
#[derive(Clone)]
pub struct Supply(Rc<Stock>);

struct Stock {
    left: Cell<u64>,
    next: Cell<i64>,
    kinds: Vec<Box<[u8]>>,
    keys: Vec<Box<[u8]>>,
    payloads: Vec<Box<[u8]>>,
}

pub struct MadeRow {
    stock: Rc<Stock>,
    id: i64,
    lane: Lane,
    key: u32,
    event_id: Uuid,
}

pub struct MadeClaim {
    supply: Supply,
    lanes: Vec<Lane>,
    rows_left: usize,
}

impl Supply {
    pub fn new(shape: &Shape) -> Supply {
        let bytes = |text: String| text.into_bytes().into_boxed_slice();
        let keys = shape.keys.min(KEYS_MAX);
        Supply(Rc::new(Stock {
            left: Cell::new(shape.rows),
            next: Cell::new(1),
            kinds: shape.kinds().into_iter().map(bytes).collect(),
            keys: (0..keys).map(|key| bytes(format!("order-{key}"))).collect(),
            payloads: (0..PAYLOADS).map(|number| bytes(shape.sample(number))).collect(),
        }))
    }

    fn take(&self, lane: Lane) -> Option<MadeRow> {
        let stock = &self.0;
        stock.left.set(stock.left.get().checked_sub(1)?);
        let id = stock.next.replace(stock.next.get() + 1);
        Some(MadeRow {
            stock: Rc::clone(stock),
            id,
            lane,
            key: fastrand::u32(..stock.keys.len() as u32),
            event_id: uuid::Builder::from_random_bytes(fastrand::u128(..).to_ne_bytes()).into_uuid(),
        })
    }
}

impl Event for MadeRow {
    fn id(&self) -> i64 {
        self.id
    }

    fn event_id(&self) -> Uuid {
        self.event_id
    }

    fn lane(&self) -> Lane {
        self.lane
    }

    fn aggregate_type(&self) -> &[u8] {
        &self.stock.kinds[self.key as usize % self.stock.kinds.len()]
    }

    fn key(&self) -> &[u8] {
        &self.stock.keys[self.key as usize]
    }

    fn event_type(&self) -> &[u8] {
        b"OrderPlaced"
    }

    fn payload(&self) -> Payload<'_> {
        Payload::Bytes(&self.stock.payloads[self.id as usize % self.stock.payloads.len()])
    }

    fn headers(&self) -> Option<&[u8]> {
        None
    }

    fn created_at_us(&self) -> i64 {
        0
    }

    fn size(&self) -> usize {
        self.stock.payloads[0].len() + 100
    }
}

impl Outbox for Supply {
    type Event = MadeRow;
    type Claim<'a> = MadeClaim;

    async fn claim(
        &mut self,
        lanes: &[Lane],
        promptly: Option<&ReadRequest>,
    ) -> Result<MadeClaim, PostgresFault> {
        let rows_left = promptly.map_or(0, |read| read.rows_max);
        Ok(MadeClaim { supply: self.clone(), lanes: lanes.to_vec(), rows_left })
    }
}

impl Claim for MadeClaim {
    type Event = MadeRow;

    fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    fn server(&self) -> ServerId {
        SERVER
    }

    async fn read(&mut self, read: &ReadRequest) -> Result<(), PostgresFault> {
        self.rows_left = read.rows_max;
        Ok(())
    }

    async fn next_slice(
        &mut self,
        rows_max: usize,
        bytes_max: usize,
        rows: &mut Vec<MadeRow>,
    ) -> Result<Slice, PostgresFault> {
        let lane = self.lanes[0];
        let (mut bytes, mut complete) = (0, false);
        for _ in 0..rows_max.min(self.rows_left) {
            if bytes > bytes_max {
                break;
            }
            let Some(row) = self.supply.take(lane) else {
                complete = true;
                break;
            };
            bytes += row.size();
            rows.push(row);
            self.rows_left -= 1;
        }
        let end = match (complete, self.rows_left) {
            (true, _) => ReadEnd::Complete,
            (false, 0) => ReadEnd::Cut,
            (false, _) if bytes > bytes_max => ReadEnd::Cut,
            (false, _) => ReadEnd::More,
        };
        Ok(Slice { hold_version: 0, epoch: Epoch::default(), end })
    }

    async fn head(&mut self, _: &ReadRequest) -> Result<Head<MadeRow>, PostgresFault> {
        Ok(Head { hold_version: 0, epoch: Epoch::default(), row: None, error: None })
    }

    async fn read_on(
        &mut self,
        search: &Search,
        _: &mut Vec<MadeRow>,
    ) -> Result<SearchResult, PostgresFault> {
        Ok(SearchResult {
            hold_version: search.hold_version,
            epoch: search.epoch,
            ids: Vec::new(),
            cut: true,
        })
    }

    async fn record_sent(&mut self, _: &[&MadeRow]) -> Result<bool, PostgresFault> {
        Ok(true)
    }

    async fn keep_alive(&mut self) -> Result<(), PostgresFault> {
        Ok(())
    }

    async fn settle(self, _: &Settlement<'_, MadeRow>) -> Result<Settled, PostgresFault> {
        Ok(Settled::All)
    }

    async fn release(self) -> Result<(), PostgresFault> {
        Ok(())
    }
}

impl ScoutQueries for Supply {
    async fn scan(&mut self, lanes: &[Lane], _: &MarksSnapshot, _: usize) -> Result<Scan, PostgresFault> {
        let stock = &self.0;
        let first_unsent = if stock.left.get() == 0 {
            Vec::new()
        } else {
            lanes.iter().map(|lane| (*lane, stock.next.get())).collect()
        };
        Ok(Scan {
            server: SERVER,
            epoch: Epoch::default(),
            first_unsent,
            hidden_to: Vec::new(),
            newest_hidden: None,
        })
    }

    async fn writers(&mut self) -> Result<(ServerId, Vec<Writer>), PostgresFault> {
        Ok((SERVER, Vec::new()))
    }

    async fn look(&mut self, _: &Look) -> Result<Looked, PostgresFault> {
        Ok(Looked { server: SERVER, hold_version: 0, epoch: Epoch::default(), rows: Vec::new() })
    }
}

/// A Kafka cluster whose topics have this number of partitions.
pub struct AtOnce {
    pub partitions: u32,
}

/// Its producer. Every row is acknowledged at the next poll.
pub struct Acknowledging {
    partitions: u32,
    reports: Vec<DeliveryReport>,
}

impl AtOnce {
    pub fn producer(&self) -> Acknowledging {
        Acknowledging { partitions: self.partitions, reports: Vec::new() }
    }
}

impl Publisher for AtOnce {
    type Producer = Acknowledging;

    async fn open(&self) -> Result<Acknowledging, KafkaFailure> {
        Ok(self.producer())
    }

    async fn judge<E: Event>(
        &self,
        _: &str,
        _: u32,
        rows: &[&E],
        _: Duration,
        _: impl Fn() -> bool,
    ) -> Judged {
        Judged { acknowledged: rows.len(), failure: None }
    }

    async fn probe(&self) -> Result<(), KafkaFailure> {
        Ok(())
    }
}

impl Producer for Acknowledging {
    async fn lookup(&self, _: &str) -> Result<u32, KafkaFailure> {
        Ok(self.partitions)
    }

    async fn leaders(&self, _: &str) -> Result<Vec<Option<i32>>, KafkaFailure> {
        Ok(vec![Some(0); self.partitions as usize])
    }

    async fn reach_leader(&self, _: &str, _: u32) -> Result<(), KafkaFailure> {
        Ok(())
    }

    fn send<E: Event>(&mut self, index: u32, topic: &str, partition: u32, event: &E) -> Result<(), NotSent> {
        black_box((topic, partition, event.id()));
        self.reports.push(DeliveryReport { index, outcome: Ok(()) });
        Ok(())
    }

    fn has_failed(&self) -> bool {
        false
    }

    fn fatal_error(&self) -> Option<KafkaFailure> {
        None
    }

    fn take_reports(&mut self, reports: &mut Vec<DeliveryReport>) {
        reports.append(&mut self.reports);
    }

    async fn wait_until_quiet(&mut self, _: bool) {}

    async fn withdraw(&mut self) {}

    async fn all_reported(&mut self) {}
}
