//! One connection of a relay, and the faults of every statement on it.

use super::server::Server;
use super::wrong_marks::WrongMarks;
use crate::plan::Sabotage;
use crate::process::Process;
use relay::failure::{FaultKind, PostgresFault};
use relay::outbox::ServerId;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::sleep;

/// The relay gives up a statement after this time without an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(4);

/// The server cancels a statement after this time. It is shorter than the time that ends a claim.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(1);

/// One connection of a relay.
pub struct SimConnection {
    pub(super) server: Rc<Server>,
    pub(super) process: Rc<Process>,
    /// The marks of a relay that raises them at the wrong time.
    pub(super) wrong_marks: Rc<WrongMarks>,
    /// 0 if there is no connection.
    serial: u64,
    started: i64,
    generation: u64,
    backend: i32,
}

impl SimConnection {
    /// Connects on first use.
    pub fn new(server: &Rc<Server>, process: &Rc<Process>, wrong_marks: &Rc<WrongMarks>) -> SimConnection {
        SimConnection {
            server: Rc::clone(server),
            process: Rc::clone(process),
            wrong_marks: Rc::clone(wrong_marks),
            serial: 0,
            started: 0,
            generation: 0,
            backend: 0,
        }
    }

    /// The statement travels to the server. When this returns, the statement runs.
    pub(super) async fn send_statement(&mut self, in_transaction: bool) -> Result<(), PostgresFault> {
        let server = Rc::clone(&self.server);
        let world = &server.world;
        world.pass(2).await;
        self.travel().await?;
        let (started, generation) = server.life();
        if self.serial == 0 {
            self.serial = server.connect();
            self.backend = self.serial as i32;
        } else if generation != self.generation && (in_transaction || !world.plan.pooler) {
            return Err(self.breaks());
        }
        (self.started, self.generation) = (started, generation);
        if world.plan.pooler && !in_transaction {
            self.backend = (generation * 4 + world.below(3)) as i32;
        }
        Ok(())
    }

    /// The answer travels back.
    pub(super) async fn receive_answer(&mut self) -> Result<(), PostgresFault> {
        let world = Rc::clone(&self.server.world);
        if world.happens(250) {
            world.pass(3).await;
        }
        if world.fails(world.plan.answer_slow) {
            world.pass(1_000).await;
        }
        self.travel().await
    }

    async fn travel(&mut self) -> Result<(), PostgresFault> {
        if self.process.has_lost_postgres() {
            sleep(ANSWER_TIMEOUT).await;
            return Err(self.breaks());
        }
        let world = &self.server.world;
        if world.fails(world.plan.postgres_breaks) {
            world.note("a connection breaks, of relay", self.process.number);
            return Err(self.breaks());
        }
        Ok(())
    }

    /// No more answers arrive over this connection.
    pub(super) fn breaks(&mut self) -> PostgresFault {
        self.serial = 0;
        PostgresFault {
            kind: FaultKind::Unavailable,
            doing: "simulating",
            message: "the connection broke".to_owned(),
        }
    }

    /// The server refuses a statement. The relay does not use the connection again.
    pub(super) fn refuses(&mut self, kind: FaultKind) -> PostgresFault {
        PostgresFault { kind, message: "the server refuses the statement".to_owned(), ..self.breaks() }
    }

    /// A statement over this number of lanes ends in time, or exceeds the statement timeout.
    pub(super) async fn in_time(&mut self, lanes: usize) -> Result<(), PostgresFault> {
        let most = self.server.world.plan.lanes_in_time;
        if most == 0 || lanes <= most {
            return Ok(());
        }
        sleep(STATEMENT_TIMEOUT).await;
        let message = "the statement timed out".to_owned();
        Err(PostgresFault { kind: FaultKind::TimedOut, doing: "simulating", message })
    }

    /// The server that answered.
    pub(super) fn server_id(&self) -> ServerId {
        if self.server.world.breaks(Sabotage::MarkKeptOverFailover) {
            return ServerId { connection: 1, started_us: 1, backend: 1 };
        }
        // A pooler keeps the connection, whatever happens to the servers behind it.
        ServerId { connection: self.serial, started_us: self.started, backend: self.backend }
    }
}
