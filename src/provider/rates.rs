//! What reply headers say of an account's rate limits. Pure; knows both families and every form of a reset that has been
//! seen: durations (`120ms`, `1s`, `6m0s`), plain seconds, RFC 3339.

use super::{Throttle, faults};
use crate::domain::account::Call;
use jiff::Timestamp;
use reqwest::{StatusCode, header::HeaderMap};
use std::time::Duration;

/// Limits that count requests hold back every call; those that count tokens only what brings more of them.
const LIMITS: [(&str, &str, Call); 6] = [
    ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests", Call::Read),
    ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens", Call::Create),
    ("anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset", Call::Read),
    ("anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset", Call::Create),
    ("anthropic-ratelimit-input-tokens-remaining", "anthropic-ratelimit-input-tokens-reset", Call::Create),
    ("anthropic-ratelimit-output-tokens-remaining", "anthropic-ratelimit-output-tokens-reset", Call::Create),
];

/// What this reply to such a call says of the next ones; none if they are welcome.
pub(super) fn read(call: Call, status: StatusCode, headers: &HeaderMap) -> Option<Throttle> {
    let spent = spent(headers);
    let asked = faults::retry_after(headers);
    match status.as_u16() {
        429 => Some(Throttle { call, wait: asked.or(spent.map(|(_, wait)| wait)), refused: true }),
        503 | 529 if asked.is_some() => Some(Throttle { call, wait: asked, refused: true }),
        _ => spent.map(|(call, wait)| Throttle { call, wait: Some(wait), refused: false }),
    }
}

/// The widest limit of which nothing is left, and how long it takes to fill up.
fn spent(headers: &HeaderMap) -> Option<(Call, Duration)> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let mut spent: Option<(Call, Duration)> = None;
    for (remaining, reset, call) in LIMITS {
        let none_left = text(remaining).and_then(|left| left.parse::<f64>().ok()).is_some_and(|left| left <= 0.0);
        let Some(wait) = text(reset).filter(|_| none_left).and_then(|reset| until(reset, headers)) else { continue };
        let wider = spent.is_none_or(|(before, longest)| (call == Call::Read, wait) > (before == Call::Read, longest));
        if wait > Duration::ZERO && wider {
            spent = Some((call, wait));
        }
    }
    spent
}

fn until(reset: &str, headers: &HeaderMap) -> Option<Duration> {
    if let Ok(seconds) = reset.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    if let Ok(at) = reset.parse::<Timestamp>() {
        return Some(Duration::try_from(at.duration_since(faults::replied_at(headers))).unwrap_or(Duration::ZERO));
    }
    duration(reset)
}

/// `120ms`, `1s`, `6m0s`, `1h2m3.5s`.
fn duration(mut text: &str) -> Option<Duration> {
    let mut total = Duration::ZERO;
    while !text.is_empty() {
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, rest) = text.split_at(digits);
        let unit = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (unit, rest) = rest.split_at(unit);
        let seconds = match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3_600.0,
            "d" => 86_400.0,
            _ => return None,
        };
        total = total.checked_add(Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()?)?;
        text = rest;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use reqwest::header::HeaderValue;

    fn told(status: u16, pairs: &[(&'static str, &'static str)]) -> Option<(Call, Option<u64>, bool)> {
        let headers =
            pairs.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect();
        let throttle = read(Call::Create, StatusCode::from_u16(status).unwrap(), &headers)?;
        let wait = throttle.wait.map(|wait| u64::try_from(wait.as_millis()).unwrap());
        Some((throttle.call, wait, throttle.refused))
    }

    const DATE: (&str, &str) = ("date", "Mon, 30 Nov 2026 09:00:00 GMT");

    #[test]
    fn nothing_left_waits_for_the_reset_in_every_form() {
        let openai =
            |reset| told(200, &[("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-reset-requests", reset)]);
        for (reset, wait) in [("120ms", 120), ("1s", 1_000), ("6m0s", 360_000), ("1h0m2.5s", 3_602_500), ("7", 7_000)] {
            assert_eq!(openai(reset), Some((Call::Read, Some(wait), false)), "{reset}");
        }
        for odd in ["", "soon", "1x", "5", "s", "-1s", "0s"].into_iter().filter(|odd| *odd != "5") {
            assert_eq!(openai(odd), None, "{odd}");
        }
        let anthropic = [
            ("anthropic-ratelimit-input-tokens-remaining", "0"),
            ("anthropic-ratelimit-input-tokens-reset", "2026-11-30T09:00:30Z"),
        ];
        assert_eq!(told(200, &[DATE, anthropic[0], anthropic[1]]), Some((Call::Create, Some(30_000), false)));
        let past = ("anthropic-ratelimit-input-tokens-reset", "2026-11-30T08:00:30Z");
        assert_eq!(told(200, &[DATE, anthropic[0], past]), None);
    }

    #[test]
    fn something_left_is_no_reason_to_wait() {
        let left = ("x-ratelimit-remaining-requests", "1");
        assert_eq!(told(200, &[left, ("x-ratelimit-reset-requests", "1s")]), None);
        assert_eq!(told(200, &[("x-ratelimit-remaining-requests", "0")]), None, "nobody says until when");
        assert_eq!(told(500, &[]), None);
        assert_eq!(told(503, &[]), None);
    }

    #[test]
    fn requests_hold_back_more_than_tokens() {
        let both = [
            ("x-ratelimit-remaining-requests", "0"),
            ("x-ratelimit-reset-requests", "1s"),
            ("x-ratelimit-remaining-tokens", "0"),
            ("x-ratelimit-reset-tokens", "1h"),
        ];
        assert_eq!(told(200, &both), Some((Call::Read, Some(1_000), false)));
        assert_eq!(told(200, &both[2..]), Some((Call::Create, Some(3_600_000), false)));
    }

    #[test]
    fn a_refusal_waits_as_long_as_it_says() {
        assert_eq!(told(429, &[("retry-after", "7")]), Some((Call::Create, Some(7_000), true)));
        assert_eq!(told(429, &[]), Some((Call::Create, None, true)));
        let spent = [("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", "2s")];
        assert_eq!(told(429, &spent), Some((Call::Create, Some(2_000), true)));
        assert_eq!(told(529, &[("retry-after", "3")]), Some((Call::Create, Some(3_000), true)));
    }
}
