//! Durations as people write them: `90s`, `10m`, `1h`.

use std::time::Duration;

use serde::Serializer;

const UNITS: [(&str, u64); 3] = [("h", 3_600), ("m", 60), ("s", 1)];

/// Reads a whole number with a unit.
pub(super) fn read(text: &str) -> Option<Duration> {
    let (number, seconds) =
        UNITS.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, *seconds)))?;
    let number: u64 = number.parse().ok().filter(|_| number.bytes().all(|b| b.is_ascii_digit()))?;
    Some(Duration::from_secs(number.checked_mul(seconds)?))
}

/// Writes it in the largest unit that leaves a whole number.
pub(super) fn write<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    let seconds = duration.as_secs();
    let fits = |(_, unit): &&(&str, u64)| seconds > 0 && seconds.is_multiple_of(*unit);
    let (name, unit) = UNITS.iter().find(fits).copied().unwrap_or(("s", 1));
    serializer.serialize_str(&format!("{}{name}", seconds / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_written() {
        for text in ["90s", "10m", "1h", "0s"] {
            let written = write(&read(text).unwrap(), serde_json::value::Serializer).unwrap();
            assert_eq!(written, text);
        }
        assert_eq!(read("600s"), read("10m"));
        for bad in
            ["", "10", "m", "-1s", "+1s", "1.5h", "10 m", "99999999999999999999s", "99999999999999999h"]
        {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
