//! Cron: when a scheduled task is due next. Times are UTC.

use croner::Cron;
use croner::parser::{CronParser, Seconds};
use jiff::{Timestamp, tz::TimeZone};

use super::task::Millis;

/// Why a schedule cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// It is not a cron expression.
    #[error(
        "cron expression {expression:?} is not valid: {reason}; expected five fields (minute hour day month weekday), \
         or six with seconds first"
    )]
    Invalid {
        /// What was given.
        expression: String,
        /// What is wrong with it.
        reason: String,
    },
    /// It is valid, but no time matches it.
    #[error("cron expression {expression:?} has no tick after {after}; is its date one that exists?")]
    Never {
        /// What was given.
        expression: String,
        /// Milliseconds since the Unix epoch.
        after: Millis,
    },
}

/// The first tick strictly after `now`. Ticks that were missed in between are left out: a schedule that was away for a
/// day fires once, not a day's worth.
pub fn next_tick(expression: &str, now: Millis) -> Result<Millis, ScheduleError> {
    let never = || ScheduleError::Never { expression: expression.to_owned(), after: now };
    let cron = parse(expression)?;
    let now = Timestamp::from_millisecond(now).map_err(|_| never())?.to_zoned(TimeZone::UTC);
    let next = cron.find_next_occurrence(&now, false).map_err(|_| never())?;
    Ok(next.timestamp().as_millisecond())
}

fn parse(expression: &str) -> Result<Cron, ScheduleError> {
    CronParser::builder().seconds(Seconds::Optional).build().parse(expression).map_err(|error| {
        ScheduleError::Invalid { expression: expression.to_owned(), reason: error.to_string() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-01-01T00:00:00Z, a Thursday.
    const NEW_YEAR: Millis = 1_767_225_600_000;

    #[test]
    fn ticks_are_strictly_later() {
        for (expression, wait) in [
            ("* * * * *", 60_000),
            ("*/5 * * * *", 300_000),
            ("0 0 * * *", 86_400_000),
            ("*/10 * * * * *", 10_000),
            ("0 12 * * FRI", (24 + 12) * 3_600_000),
            ("@hourly", 3_600_000),
        ] {
            assert_eq!(next_tick(expression, NEW_YEAR), Ok(NEW_YEAR + wait), "{expression}");
        }
        assert_eq!(next_tick("* * * * *", NEW_YEAR + 59_999), Ok(NEW_YEAR + 60_000));
        assert_eq!(next_tick("0 0 29 2 *", NEW_YEAR), Ok(1_835_395_200_000)); // 2028-02-29
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for expression in ["", "* * * *", "61 * * * *", "a b c d e", "* * * * * * * *"] {
            let error = next_tick(expression, NEW_YEAR).expect_err(expression);
            assert!(matches!(error, ScheduleError::Invalid { .. }), "{expression}: {error}");
            assert!(error.to_string().contains(&format!("{expression:?}")), "{error}");
        }
        assert!(matches!(next_tick("0 0 31 2 *", NEW_YEAR), Err(ScheduleError::Never { .. })));
        assert!(matches!(next_tick("* * * * *", Millis::MAX), Err(ScheduleError::Never { .. })));
    }
}
