//! The time range.

use crate::cli::arguments::moment::Moment;
use crate::cli::exit::Failed;
use std::time::SystemTime;

/// The range, by the server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub since: SystemTime,
    pub until: SystemTime,
    /// The server's time when the command began.
    pub now: SystemTime,
}

/// The range at this time of the server.
pub(super) fn resolve(since: Moment, until: Option<Moment>, now: SystemTime) -> Result<Range, Failed> {
    let (since, until) = (since.at(now)?, until.map_or(Ok(now), |until| until.at(now))?);
    if since >= now {
        return Err(Failed::Usage("--since is in the future.".to_owned()));
    }
    if since >= until {
        return Err(Failed::Usage("--since must be before --until.".to_owned()));
    }
    Ok(Range { since, until: until.min(now), now })
}

/// Microseconds since 1970.
pub(super) fn micros(at: SystemTime) -> i64 {
    match at.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_micros()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_micros()).map_or(i64::MIN, |micros| -micros),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::arguments::moment::moment;
    use std::time::Duration;

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn resolved(since: &str, until: Option<&str>) -> Result<Range, String> {
        let now = NOW + Duration::from_secs(1_000_000);
        let until = until.map(|until| moment(until).unwrap());
        resolve(moment(since).unwrap(), until, now).map_err(|failed| match failed {
            Failed::Usage(text) => text,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn durations_and_times_are_accepted() {
        let since = |seconds| NOW + Duration::from_secs(seconds);
        let now = since(1_000_000);
        assert_eq!(resolved("1h", None), Ok(Range { since: since(996_400), until: now, now }));
        let range = Range { since: since(60), until: since(999_940), now };
        assert_eq!(resolved("1970-01-01T00:01:00Z", Some("60s")), Ok(range));
        assert_eq!(resolved("1h", Some("2100-01-01 00:00:00")).unwrap().until, now, "the future is empty");
    }

    #[test]
    fn impossible_ranges_are_refused() {
        assert_eq!(resolved("1h", Some("2h")).unwrap_err(), "--since must be before --until.");
        assert_eq!(resolved("1h", Some("1h")).unwrap_err(), "--since must be before --until.");
        assert_eq!(resolved("2100-01-01T00:00:00Z", None).unwrap_err(), "--since is in the future.");
        assert!(resolved("100years", None).unwrap_err().starts_with("100years before now is before 1970"));
        for text in ["", "yesterday", "2026-13-01T00:00:00Z", "-1h", "5"] {
            assert!(moment(text).is_err(), "{text}");
        }
    }
}
