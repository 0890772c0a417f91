//! How long it took until publishing resumed.
//!
//! - *All working*: from the end of a fault, when everything that the relays need is available, until each of them has
//!   been seen with a claim, in the locks of the database.
//! - *Resumed*: from the end of a fault until any relay has settled the next row of any key. After a fault of a topic, the
//!   next row of that topic. The time of a settlement is `sent_at`, which the relay takes from PostgreSQL's clock.
//! - *Taken over*: from the moment at which a relay is killed, frozen or cut off from PostgreSQL for longer than
//!   `takeover_timeout`, until the first unsent row of each lane that it had claimed at that moment is settled. These rows
//!   are determined from the locks while the process is stopped, so the fault always strikes a relay with a claim. Only
//!   faults that occurred alone count.
//!
//! All times come from one machine with one clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio_postgres::{Client, Error};

use crate::faults::Struck;

const RESUMED: &str = "
SELECT extract(epoch FROM min(sent_at))::float8
FROM outbox
WHERE sent_at > to_timestamp($1) AND ($2::text IS NULL OR 'events.' || aggregate_type = $2)";

/// A row may have been marked before, by a COMMIT that was in flight.
const TAKEN_OVER: &str = "
SELECT extract(epoch FROM greatest(
    to_timestamp($1),
    (SELECT max(sent_at) FROM outbox WHERE id = ANY($2)),
    (SELECT max(rejected_at) FROM outbox_dead_letter WHERE outbox_id = ANY($2))
))::float8";

/// The measured times of one fault.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// None if no row has been settled since.
    pub resumed: Option<Duration>,
    /// None if the fault required no takeover, or if the relay had no claim.
    pub taken_over: Option<Duration>,
}

/// Queries the database after the run.
pub async fn measure(client: &Client, struck: &Struck) -> Times {
    let resumed = since(struck.ended, first_settled(client, struck).await.unwrap());
    let mut taken_over = None;
    if struck.alone && struck.fault.kind.is_taken_over() && !struck.claimed.is_empty() {
        let row = client.query_one(TAKEN_OVER, &[&seconds(struck.began), &struck.claimed]).await.unwrap();
        taken_over = since(struck.began, row.get(0));
    }
    Times { resumed, taken_over }
}

/// The time at which the first row was settled after the end of this fault, in seconds since 1970.
pub async fn first_settled(client: &Client, struck: &Struck) -> Result<Option<f64>, Error> {
    let row = client.query_one(RESUMED, &[&seconds(struck.ended), &struck.fault.topic()]).await?;
    Ok(row.get(0))
}

fn seconds(moment: SystemTime) -> f64 {
    moment.duration_since(UNIX_EPOCH).expect("a time after 1970").as_secs_f64()
}

fn since(moment: SystemTime, then: Option<f64>) -> Option<Duration> {
    then.map(|then| Duration::from_secs_f64((then - seconds(moment)).max(0.0)))
}

/// The median, if there are any times.
pub fn median(times: &[Duration]) -> Option<Duration> {
    let mut sorted = times.to_vec();
    sorted.sort();
    sorted.get(sorted.len() / 2).copied()
}
