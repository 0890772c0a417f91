//! Scenario 4: the peak memory of a relay that drains larger rows.

use super::subjects::{MIB, relay_drains};
use crate::figures::Unit;
use crate::results::Outcome;
use crate::size::Size;
use crate::world::World;
use outbox_bench::Shape;
use outbox_bench::place::Place;

/// A topic accepts records of 1 MiB by default, including the key, the headers and the framing.
const NEARLY_A_MIB: usize = (1 << 20) - 1_024;
/// The default of topics. librdkafka's own default is smaller.
const RECORD_BYTES_MAX: &str = "1048588";

pub async fn measure(world: &World, size: &Size, outcome: &mut Outcome) -> anyhow::Result<()> {
    let place = Place::create(world.settings()).await?;
    for (name, rows, payload_bytes) in [("1 KiB", 1_000_000, 1_024), ("1 MiB", 500, NEARLY_A_MIB)] {
        let shape = Shape { rows: size.rows(rows), keys: 10_000, payload_bytes, topics: 1, hot_share: 0.0 };
        let drain = relay_drains(&place, &shape, |settings| {
            settings.with_kafka_property("message.max.bytes", RECORD_BYTES_MAX)
        })
        .await?;
        let memory = drain.usage[0].memory_peak_bytes as f64 / MIB;
        eprintln!("  {name}: {}", Unit::Mebibytes.show(memory));
        outcome.figures.push(format!("{name}: memory"), Unit::Mebibytes, memory);
        outcome.figures.push(format!("{name}: rate"), Unit::RowsPerSecond, drain.rows_per_second);
    }
    outcome.notes.push(format!(
        "The payload of the rows of 1 MiB is 1 KiB smaller than that, because a topic accepts records of up to 1 MiB \
         by default. For these rows, `\"message.max.bytes\" = {RECORD_BYTES_MAX}` was set."
    ));
    place.remove().await?;
    Ok(())
}
