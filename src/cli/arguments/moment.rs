//! A point in time on the command line.

use crate::cli::exit::Failed;
use humantime::{format_duration, parse_duration, parse_rfc3339_weak};
use std::time::{Duration, SystemTime};

/// A time, or a duration before the server's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    Ago(Duration),
    At(SystemTime),
}

/// Parses a moment.
pub(crate) fn moment(text: &str) -> Result<Moment, String> {
    if let Ok(at) = parse_rfc3339_weak(text) {
        return Ok(Moment::At(at));
    }
    if text.starts_with('-') {
        return Err("write the duration without a sign, such as 1h: it is counted back from now".to_owned());
    }
    parse_duration(text).map(Moment::Ago).map_err(|_| {
        "write a duration before now, such as 2h, or a time in UTC, such as 2026-01-31T12:00:00Z".to_owned()
    })
}

impl Moment {
    /// The time, at this time of the server.
    pub(crate) fn at(self, now: SystemTime) -> Result<SystemTime, Failed> {
        match self {
            Moment::At(at) => Ok(at),
            // PostgreSQL and Kafka have no times far before 1970.
            Moment::Ago(ago) => {
                now.checked_sub(ago).filter(|at| *at >= SystemTime::UNIX_EPOCH).ok_or_else(|| {
                    let ago = format_duration(ago);
                    Failed::Usage(format!("{ago} before now is before 1970. Use a shorter duration."))
                })
            }
        }
    }
}
