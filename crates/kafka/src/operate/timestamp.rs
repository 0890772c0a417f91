//! A point in time as text.

const MICROSECONDS: i64 = 1_000_000;
const SECONDS_PER_DAY: i64 = 24 * 60 * 60;
const DAYS_PER_ERA: i64 = 146_097;
/// From 0000-03-01 to 1970-01-01.
const DAYS_BEFORE_1970: i64 = 719_468;

/// A time in microseconds since 1970, in the format of RFC 3339 (`2026-01-31T23:59:59.000001Z`). `None` if the year is not
/// from 0000 to 9999.
pub(crate) fn rfc3339(microseconds: i64) -> Option<String> {
    let (seconds, micros) = (microseconds.div_euclid(MICROSECONDS), microseconds.rem_euclid(MICROSECONDS));
    let (days, second) = (seconds.div_euclid(SECONDS_PER_DAY), seconds.rem_euclid(SECONDS_PER_DAY));
    let (year, month, day) = date(days);
    if !(0..=9999).contains(&year) {
        return None;
    }
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    Some(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z"))
}

/// The date of this day since 1970, in the proleptic Gregorian calendar, as in PostgreSQL.
///
/// An era of 400 years always has the same number of days. Years begin in March here, so the leap day is the last one.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + DAYS_BEFORE_1970;
    let (era, day) = (days.div_euclid(DAYS_PER_ERA), days.rem_euclid(DAYS_PER_ERA));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153; // 0 is March
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next, month, day_of_month)
}

#[cfg(test)]
mod tests {
    use super::rfc3339;

    #[test]
    fn times_are_written_in_utc_with_microseconds() {
        for (microseconds, expected) in [
            (0, Some("1970-01-01T00:00:00.000000Z")),
            (-1, Some("1969-12-31T23:59:59.999999Z")),
            (951_782_400_000_000, Some("2000-02-29T00:00:00.000000Z")),
            (981_173_106_789_012, Some("2001-02-03T04:05:06.789012Z")),
            (4_107_542_399_000_000, Some("2100-02-28T23:59:59.000000Z")),
            (4_107_542_400_000_000, Some("2100-03-01T00:00:00.000000Z")),
            (253_402_300_799_999_999, Some("9999-12-31T23:59:59.999999Z")),
            (253_402_300_800_000_000, None),
            (-62_167_219_200_000_000, Some("0000-01-01T00:00:00.000000Z")),
            (-62_167_219_200_000_001, None),
            (i64::MAX, None),
            (i64::MIN, None),
        ] {
            assert_eq!(rfc3339(microseconds).as_deref(), expected, "{microseconds}");
        }
    }
}
