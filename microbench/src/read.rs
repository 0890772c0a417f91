//! From the wire to rows: what the Postgres client does with each message, and what the relay takes of the row at once.

use crate::rows::{Headers, Wire};
use crate::{Part, ROWS};
use outbox_relay::postgres::cycle::event::OutboxRow;

/// Reads a batch. The socket is a pipe in memory, and both of its ends are paid for.
pub(super) struct Decode {
    wire: Wire,
    rows: Vec<OutboxRow>,
}

impl Decode {
    pub(super) fn new() -> Decode {
        Decode { wire: Wire::new(1, ROWS, Headers::None), rows: Vec::with_capacity(ROWS) }
    }
}

impl Part for Decode {
    fn run(&mut self) {
        self.rows.clear(); // A row's end is part of its cost.
        self.wire.read(&mut self.rows);
    }
}
