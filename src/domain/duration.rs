//! How durations are written: `250ms`, `5s`, `10m`, `72h`, `30d`. In settings and in a batch's own fields alike.

use std::time::Duration;

/// # Errors
/// A message for whoever wrote it.
pub fn parse(text: &str) -> Result<Duration, String> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let wrong = || "is not a duration: write 250ms, 5s, 10m, 72h or 30d".to_owned();
    let millis = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(millis).map(Duration::from_millis).ok_or_else(|| "is too long a time".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_written() {
        assert_eq!(parse("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse("30d"), Ok(Duration::from_secs(30 * 86_400)));
        for bad in ["", "5", "s", "-5s", "5 s", "99999999999999999999d", "999999999999d", "1.5h"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
