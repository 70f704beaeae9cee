//! Sizes and durations as people write them on a command line.

use std::time::Duration;

/// Reads a number of bytes: `65536`, `512K`, `64M`, `1G`, `1T`; also `64MiB`. Units are powers of 1024.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let unit = unit.to_ascii_uppercase();
    let shift = match unit.strip_suffix("IB").unwrap_or(&unit) {
        "" if unit.is_empty() => Some(0),
        "K" => Some(10),
        "M" => Some(20),
        "G" => Some(30),
        "T" => Some(40),
        _ => None,
    };
    let bytes = shift.zip(number.parse::<u64>().ok()).and_then(|(shift, number)| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| "not a size: write bytes, or a number with K, M, G or T, as in 65536, 512K, 64M, 1G".to_owned())
}

/// Reads a duration, which is not zero: `500ms`, `10s`, `2m`, `1h`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let unit_ms = match unit {
        "ms" => Some(1),
        "s" => Some(1000),
        "m" => Some(60 * 1000),
        "h" => Some(60 * 60 * 1000),
        _ => None,
    };
    let ms = unit_ms.zip(number.parse::<u64>().ok()).and_then(|(unit, number)| number.checked_mul(unit));
    ms.filter(|ms| *ms > 0).map(Duration::from_millis).ok_or_else(|| {
        "not a duration: write a whole number above zero with ms, s, m or h, as in 500ms, 10s, 2m".to_owned()
    })
}

/// Digits, and what follows them.
fn split(text: &str) -> (&str, &str) {
    text.split_at(text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        let cases = [("0", 0), ("65536", 65536), ("512K", 512 << 10), ("64M", 64 << 20), ("1g", 1 << 30)];
        for (text, want) in cases.into_iter().chain([("2T", 2 << 40), ("3MiB", 3 << 20)]) {
            assert_eq!(size(text), Ok(want), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_shows_what_is() {
        for text in ["", "M", "-1", "1.5G", "1 G", "64MB", "64Q", "iB", "4iB", "16777216T", "99999999999999999999"] {
            assert!(size(text).is_err_and(|error| error.contains("64M")), "{text}");
        }
    }

    #[test]
    fn durations_have_units() {
        for (text, want_ms) in [("500ms", 500), ("10s", 10_000), ("2m", 120_000), ("1h", 3_600_000)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(want_ms)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_shows_what_is() {
        for text in ["", "10", "0s", "-1s", "1.5s", "5 s", "10S", "s", "18446744073709551615h"] {
            assert!(duration(text).is_err_and(|error| error.contains("500ms")), "{text}");
        }
    }
}
