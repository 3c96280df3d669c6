//! Text for a terminal: tables, ages, and strings that cannot harm it.

use std::fmt::Write;

use crate::core::task::Millis;
use comfy_table::{Table, presets};

/// A table of plain columns, which a pipe can read too.
pub(crate) fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(head);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

/// The text with its control characters spelled out: what others wrote must not steer the terminal.
pub(crate) fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            // cannot fail: a String takes everything
            let _ = write!(safe, "{}", character.escape_default());
        } else {
            safe.push(character);
        }
    }
    safe
}

/// How long ago, in the largest unit that says something: `now`, `42s`, `7m`, `3h`, `12d`.
pub(crate) fn age(then: Millis, now: Millis) -> String {
    let seconds = now.saturating_sub(then).max(0) / 1_000;
    match seconds {
        0 => "now".to_owned(),
        1..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..86_400 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// A point in time, in UTC.
pub(crate) fn time(at: Millis) -> String {
    match jiff::Timestamp::from_millisecond(at) {
        Ok(time) => time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
        Err(_) => format!("{at} ms"),
    }
}

/// A number with its thousands set apart.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A size in the largest unit that leaves a number of at least 1.
pub(crate) fn bytes(size: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let mut value = size as f64;
    let mut shown = "B";
    for unit in units {
        if value < 1_024.0 {
            break;
        }
        value /= 1_024.0;
        shown = unit;
    }
    if shown == "B" { format!("{size} B") } else { format!("{value:.1} {shown}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_spelled_out() {
        assert_eq!(printable("a\u{1b}[31mb\nc\0ü"), "a\\u{1b}[31mb\\nc\\u{0}ü");
    }

    #[test]
    fn ages_are_short() {
        let said: Vec<String> = [0, 999, 59_999, 60_000, 7_200_000, 864_000_000].map(|ms| age(0, ms)).into();
        assert_eq!(said, ["now", "now", "59s", "1m", "2h", "10d"]);
        assert_eq!(age(5_000, 0), "now");
    }

    #[test]
    fn times_are_utc() {
        assert_eq!(time(1_767_225_600_123), "2026-01-01 00:00:00 UTC");
        assert_eq!(time(i64::MAX), format!("{} ms", i64::MAX));
    }

    #[test]
    fn numbers_can_be_read() {
        let said: Vec<String> = [0, 999, 1_000, 1_234_567].map(count).into();
        assert_eq!(said, ["0", "999", "1,000", "1,234,567"]);
        let said: Vec<String> = [0, 1_023, 1_536, 3 << 30].map(bytes).into();
        assert_eq!(said, ["0 B", "1023 B", "1.5 KiB", "3.0 GiB"]);
    }
}
