//! A relay as a process. It can be killed or frozen before any poll of any of its tasks, that is, at every await.

use super::event::SimEvent;
use super::kafka::broker::Place;
use super::postgres::server::SURE_TO_KEEP;
use super::world::{World, add};
use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep_until};

/// After a short freeze, the next one waits until the relay has sent a statement to PostgreSQL again. Two short freezes
/// must not become a long one.
const CONTACT_AGAIN: Duration = Duration::from_millis(1_500);

/// One life of one relay.
pub struct Process {
    pub world: Rc<World>,
    /// The number of the relay.
    pub number: usize,
    dead: Cell<bool>,
    /// Wakes the task that waits for its end.
    pub died: Notify,
    frozen_until: Cell<Instant>,
    /// Whether it has been frozen before.
    was_frozen: Cell<bool>,
    postgres_cut_until: Cell<Instant>,
    kafka_cut_until: Cell<Instant>,
    leader_cut: Cell<Option<(Place, Instant)>>,
    doom: Cell<Option<(u64, Doom)>>,
    /// Events that its producers refused before they were sent. For a defective relay that blocks their keys too early.
    pub refused: RefCell<Vec<SimEvent>>,
}

/// What happens to a process between two of its steps.
#[derive(Clone, Copy, Debug, Hash)]
pub enum Doom {
    /// `kill -9`: the sockets close.
    Killed,
    /// The host is lost, so nothing closes the sockets.
    HostLost,
    /// SIGSTOP and SIGCONT.
    Frozen(Duration),
}

impl Process {
    /// A running relay.
    pub fn new(world: &Rc<World>, number: usize) -> Rc<Process> {
        let now = Instant::now();
        Rc::new(Process {
            world: Rc::clone(world),
            number,
            dead: Cell::new(false),
            died: Notify::new(),
            frozen_until: Cell::new(now),
            was_frozen: Cell::new(false),
            postgres_cut_until: Cell::new(now),
            kafka_cut_until: Cell::new(now),
            leader_cut: Cell::new(None),
            doom: Cell::new(None),
            refused: RefCell::default(),
        })
    }

    /// Lets this happen after the given number of steps.
    pub fn doom(&self, steps: u64, doom: Doom) {
        self.doom.set(Some((steps, doom)));
    }

    /// Cuts the relay off from PostgreSQL for some time, in both directions.
    pub fn cut_postgres(&self, time: Duration) {
        self.world.note("relay cannot reach PostgreSQL", (self.number, time));
        add(&self.world.count.interruptions, 1);
        self.postgres_cut_until.set(Instant::now() + time);
    }

    /// Whether PostgreSQL receives nothing from it, because it is cut off or frozen or its host is lost.
    pub fn is_silent(&self) -> bool {
        let now = Instant::now();
        self.postgres_cut_until.get() > now || self.frozen_until.get() > now
    }

    /// Whether it is cut off from PostgreSQL now.
    pub fn has_lost_postgres(&self) -> bool {
        self.postgres_cut_until.get() > Instant::now()
    }

    /// Cuts the relay off from Kafka for some time.
    pub fn cut_kafka(&self, time: Duration) {
        self.world.note("relay cannot reach Kafka", (self.number, time));
        add(&self.world.count.interruptions, 1);
        self.kafka_cut_until.set(Instant::now() + time);
    }

    /// Cuts the relay off from the leader of one partition for some time.
    pub fn cut_leader(&self, place: Place, time: Duration) {
        self.world.note("relay cannot reach a leader", (self.number, place, time));
        add(&self.world.count.interruptions, 1);
        self.leader_cut.set(Some((place, Instant::now() + time)));
    }

    /// Whether it is cut off from the leader of this partition now.
    pub fn has_lost_leader(&self, place: Place) -> bool {
        self.leader_cut.get().is_some_and(|(cut, until)| cut == place && until > Instant::now())
    }

    /// Whether it is cut off from Kafka now.
    pub fn has_lost_kafka(&self) -> bool {
        self.kafka_cut_until.get() > Instant::now()
    }

    /// Waits while the process is frozen. Called by code that belongs to the process but is not a task of the relay.
    pub async fn thawed(&self) {
        while self.frozen_until.get() > Instant::now() && !self.dead.get() {
            sleep_until(self.frozen_until.get()).await;
        }
    }

    /// A task of this process.
    pub fn task<F: Future<Output = ()>>(self: &Rc<Self>, task: F) -> Task<F> {
        Task { process: Rc::clone(self), task: Box::pin(task), thaw: None }
    }

    fn step(&self) {
        let Some((steps, doom)) = self.doom.get() else { return };
        if steps > 0 {
            return self.doom.set(Some((steps - 1, doom)));
        }
        let frozen_again =
            self.was_frozen.get() && matches!(doom, Doom::Frozen(time) if time <= SURE_TO_KEEP);
        if frozen_again && self.frozen_until.get() + CONTACT_AGAIN > Instant::now() {
            return;
        }
        self.doom.set(None);
        self.world.note("relay is", (self.number, doom));
        add(&self.world.count.interruptions, 1);
        let now = Instant::now();
        match doom {
            Doom::Frozen(time) => {
                self.frozen_until.set(now + time);
                self.was_frozen.set(true);
            }
            Doom::Killed | Doom::HostLost => {
                if matches!(doom, Doom::HostLost) {
                    self.postgres_cut_until.set(now + Duration::from_secs(3_600));
                }
                self.dead.set(true);
                self.died.notify_one();
            }
        }
    }
}

/// A task that stops while its process is frozen, and permanently once the process is dead.
pub struct Task<F> {
    process: Rc<Process>,
    task: Pin<Box<F>>,
    thaw: Option<Pin<Box<Sleep>>>,
}

impl<F: Future<Output = ()>> Future for Task<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.process.step();
        if self.process.dead.get() {
            return Poll::Pending;
        }
        while self.process.frozen_until.get() > Instant::now() {
            let until = self.process.frozen_until.get();
            let mut thaw = Box::pin(sleep_until(until));
            let thawed = thaw.as_mut().poll(context).is_ready();
            self.thaw = Some(thaw);
            if !thawed {
                return Poll::Pending;
            }
        }
        self.task.as_mut().poll(context)
    }
}
