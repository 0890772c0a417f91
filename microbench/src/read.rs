//! From the wire to rows: the PostgreSQL client's work for each message, and the columns that the relay reads
//! immediately.

use crate::rows::{Headers, Wire};
use crate::{Part, ROWS};
use outbox_relay::postgres::cycle::row::OutboxRow;

/// Reads a batch. The socket is a pipe in memory, and both of its ends are included in the cost.
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
        self.rows.clear(); // The cost of dropping a row is part of its cost.
        self.wire.read(&mut self.rows);
    }
}
