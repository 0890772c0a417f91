//! Scenario 13: many topics, many keys, small and large payloads, each compared with the reference rows.

use super::subjects::{MIB, note_rate, reference, relay_drains};
use crate::figures::{Unit, thousands};
use crate::results::Outcome;
use crate::size::Size;
use crate::world::World;
use outbox_bench::Shape;
use outbox_bench::place::Place;

pub async fn measure(world: &World, size: &Size, outcome: &mut Outcome) -> anyhow::Result<()> {
    let base = reference(size.rows(1_000_000));
    let shapes = [
        ("reference", base),
        ("1,000 topics", Shape { topics: 1_000, ..base }),
        ("10,000,000 keys", Shape { rows: size.rows(2_000_000), keys: 10_000_000, ..base }),
        ("10 B", Shape { payload_bytes: 10, ..base }),
        ("1 KiB", Shape { payload_bytes: 1_024, ..base }),
        ("100 KiB", Shape { rows: size.rows(20_000), payload_bytes: 100 << 10, ..base }),
    ];
    let place = Place::create(world.settings()).await?;
    for _ in 0..size.runs {
        for (name, shape) in &shapes {
            let drain = relay_drains(&place, shape, |settings| settings).await?;
            note_rate(&mut outcome.figures, name, &drain);
            let bytes = drain.rows_per_second * shape.payload_bytes as f64 / MIB;
            outcome.figures.push(format!("{name}: bytes"), Unit::MebibytesPerSecond, bytes);
        }
    }
    outcome.notes.push(format!(
        "Each of the {} rows has one of 10,000,000 possible keys. Each of the 1,000 topics has one partition.",
        thousands(shapes[2].1.rows as f64)
    ));
    place.remove().await?;
    Ok(())
}
