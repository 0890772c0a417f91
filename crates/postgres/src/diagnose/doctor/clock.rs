//! Compares the clocks of this machine and of the server.

use super::Context;
use relay::failure::PostgresFault;
use settings::doctor::Finding;
use settings::doctor::codes::CLOCK_SKEW;
use settings::text::span;
use std::time::{Duration, SystemTime};

const DOING: &str = "reading the server's clock";
const NOW: &str = "SELECT extract(epoch FROM clock_timestamp())::float8";
/// Machines without time synchronization soon differ by more than this.
const SKEW_MAX: f64 = 2.0;

pub(super) async fn findings(context: &Context<'_>) -> Result<Vec<Finding>, PostgresFault> {
    let before = epoch();
    let rows = context.rows(DOING, NOW, &[]).await?;
    let after = epoch();
    let server: f64 = rows.first().map_or(before, |row| row.get(0));
    // The server read its clock between the two times.
    let skew = if server < before { server - before } else { (server - after).max(0.0) };
    if skew.abs() <= SKEW_MAX {
        return Ok(Vec::new());
    }
    let direction = if skew > 0.0 { "ahead of" } else { "behind" };
    let by = span(Duration::from_secs_f64(skew.abs()));
    let problem = format!("the clock of PostgreSQL is {by} {direction} the clock of this machine");
    let remedy = "check `timedatectl` or `chronyc tracking` on both machines, and synchronize them with NTP";
    Ok(vec![CLOCK_SKEW.found("PostgreSQL and this machine", problem, remedy)])
}

fn epoch() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}
