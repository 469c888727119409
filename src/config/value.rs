//! How values of settings are written: durations `250ms`, `5s`, `30d`; sizes `64MiB`; key hashes `sha256:<hex>`.

use crate::domain::room::CacheMax;
use std::time::Duration;

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    crate::domain::duration::parse(text).map_err(|why| format!("{text:?} {why}"))
}

/// A time something is kept: from a second to ten years.
pub(super) fn kept(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        kept if (1..=10 * 365 * 86_400).contains(&kept.as_secs()) => Ok(kept),
        _ => Err("must be from 1s to ten years".to_owned()),
    }
}

pub(super) fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let bytes = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err(format!("{text:?} is not a size: write 500, 64KiB, 64MiB or 4GiB")),
    };
    match number.checked_mul(bytes) {
        Some(bytes) if bytes > 0 => Ok(bytes),
        _ => Err(format!("{text:?} is out of range")),
    }
}

/// A size, or `60%` of Redis's maxmemory.
pub(super) fn cache_max(text: &str) -> Result<CacheMax, String> {
    let Some(number) = text.strip_suffix('%') else {
        return match size(text) {
            Ok(bytes) if bytes >= 1 << 20 => Ok(CacheMax::Bytes(bytes)),
            Ok(_) => Err(format!("{text:?} is less than 1MiB: write 2GiB, or 60% of Redis's maxmemory")),
            Err(why) => Err(format!("{why}, or 60% of Redis's maxmemory")),
        };
    };
    match number.trim().parse() {
        Ok(percent @ 1..=100) => Ok(CacheMax::Percent(percent)),
        _ => Err(format!("{text:?} is out of range: write 1% to 100% of Redis's maxmemory")),
    }
}

fn split(text: &str) -> Result<(u64, &str), String> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number = text[..end].parse().map_err(|_| format!("{text:?} does not begin with a whole number"))?;
    Ok((number, &text[end..]))
}

pub(super) fn key_hash(text: &str) -> Result<[u8; 32], String> {
    let wrong = || "a key hash is `sha256:` and 64 hex digits; `batchgate key new TEAM` prints one".to_owned();
    let hex = text.strip_prefix("sha256:").filter(|hex| hex.len() == 64 && hex.is_ascii()).ok_or_else(wrong)?;
    let mut hash = [0; 32];
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[at * 2..at * 2 + 2], 16).map_err(|_| wrong())?;
    }
    Ok(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_written() {
        assert_eq!(size("64MiB"), Ok(64 << 20));
        for bad in ["", "0", "MiB", "5MB", "99999999999GiB"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_cache_s_bound_is_a_size_or_a_part() {
        assert_eq!(cache_max("2GiB"), Ok(CacheMax::Bytes(2 << 30)));
        for part in ["60%", "60 %"] {
            assert_eq!(cache_max(part), Ok(CacheMax::Percent(60)));
        }
        for bad in ["", "0%", "101%", "-5%", "60", "x%", "60%%", "0"] {
            assert!(cache_max(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_key_hash_is_64_hex_digits() {
        assert_eq!(key_hash(&format!("sha256:{}", "0f".repeat(32))), Ok([0x0f; 32]));
        for bad in ["", "sha256:", "sha256:zz", &format!("sha256:{}", "é".repeat(32))] {
            assert!(key_hash(bad).is_err(), "{bad}");
        }
    }
}
