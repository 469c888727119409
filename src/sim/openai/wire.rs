//! How OpenAI talks: keys, headers, the error envelope, and its words for what is wrong with a parameter.

use std::collections::HashMap;

use http::{HeaderMap, header};
use serde_json::{Value, json};

use crate::sim::{calls::Call, problem::Problem};

pub(crate) fn authenticate(headers: &HeaderMap, keys: &HashMap<String, String>) -> Result<String, Problem> {
    let given = headers.get(header::AUTHORIZATION).and_then(|given| given.to_str().ok()).unwrap_or_default();
    let key = match given.split_once(' ') {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case("bearer") && !key.trim().is_empty() => key.trim(),
        _ => {
            let message = "You didn't provide an API key. Send it in an Authorization header as a Bearer token.";
            return Err(Problem::new(401, "invalid_request_error", message));
        }
    };
    keys.get(key).cloned().ok_or_else(|| {
        let start: String = key.chars().take(3).collect();
        let message = format!(
            "Incorrect API key provided: {start}***. You can find your API key at https://platform.openai.com/account/api-keys."
        );
        Problem::new(401, "invalid_request_error", message).code("invalid_api_key")
    })
}

pub(crate) fn envelope(problem: &Problem) -> Value {
    json!({"error": {
        "message": problem.message, "type": problem.kind, "param": problem.param, "code": problem.code,
    }})
}

pub(crate) fn headers(call: &Call) -> Vec<(&'static str, String)> {
    let quota = call.quota;
    vec![
        ("x-request-id", call.request_id.clone()),
        ("openai-organization", format!("org-{}", call.account)),
        ("openai-version", "2020-10-01".into()),
        ("openai-processing-ms", call.began.elapsed().as_millis().to_string()),
        ("x-ratelimit-limit-requests", quota.limit.to_string()),
        ("x-ratelimit-remaining-requests", quota.remaining.to_string()),
        ("x-ratelimit-reset-requests", duration(quota.reset_s)),
        ("x-ratelimit-limit-tokens", "10000000".into()),
        ("x-ratelimit-remaining-tokens", "9999000".into()),
        ("x-ratelimit-reset-tokens", "6ms".into()),
    ]
}

/// `59s`, `1m0s`.
fn duration(seconds: f64) -> String {
    let (minutes, rest) = ((seconds / 60.0).floor(), seconds % 60.0);
    if seconds >= 60.0 { format!("{minutes:.0}m{rest:.0}s") } else { format!("{rest:.0}s") }
}

pub(crate) fn no_such_url(call: &Call, status: u16) -> Problem {
    let path = call.parts.uri.path().trim_start_matches("/openai");
    Problem::new(status, "invalid_request_error", format!("Invalid URL ({} {path})", call.parts.method))
}

pub(crate) fn missing(param: &str) -> Problem {
    Problem::invalid(format!("Missing required parameter: '{param}'.")).param(param).code("missing_required_parameter")
}

pub(crate) fn wrong_type(param: &str, expected: &str, given: &Value) -> Problem {
    let given = match given {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    };
    Problem::invalid(format!("Invalid type for '{param}': expected {expected}, but got {given} instead."))
        .param(param)
        .code("invalid_type")
}

pub(crate) fn bad_value<'a>(param: &str, given: &str, supported: impl IntoIterator<Item = &'a str>) -> Problem {
    let supported: Vec<_> = supported.into_iter().map(|name| format!("'{name}'")).collect();
    Problem::invalid(format!("Invalid value: '{given}'. Supported values are: {}.", supported.join(", ")))
        .param(param)
        .code("invalid_value")
}

/// A number that may have come as text, as in a form or a query.
pub(crate) fn whole_number(param: &str, given: &Value, bounds: std::ops::RangeInclusive<i64>) -> Result<i64, Problem> {
    let number = match given {
        Value::String(text) => text.trim().parse().ok(),
        other => other.as_i64(),
    };
    let number = number.ok_or_else(|| wrong_type(param, "an integer", given))?;
    let refuse = |side: &str, word: &str, bound: i64, code: &'static str| {
        let message = format!(
            "Invalid '{param}': integer {side} value. Expected a value {word} {bound}, but got {number} instead."
        );
        Err(Problem::invalid(message).param(param).code(code))
    };
    if number < *bounds.start() {
        refuse("below minimum", ">=", *bounds.start(), "integer_below_min_value")
    } else if number > *bounds.end() {
        refuse("above maximum", "<=", *bounds.end(), "integer_above_max_value")
    } else {
        Ok(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_bearer_token() {
        let keys = HashMap::from([("k".to_owned(), "team".to_owned())]);
        let check = |given: &str, expected: Result<&str, u16>| {
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, given.parse().expect("a header"))]);
            let account = authenticate(&headers, &keys).map_err(|problem| problem.status);
            assert_eq!(account.as_deref().map_err(|status| *status), expected, "{given}");
        };
        check("Bearer k", Ok("team"));
        check("bearer k", Ok("team"));
        check("Bearer other", Err(401));
        check("Basic k", Err(401));
        check("", Err(401));
    }

    #[test]
    fn numbers_have_bounds() {
        let check = |given: Value, code: Option<&str>| {
            let problem = whole_number("limit", &given, 1..=100).err();
            assert_eq!(problem.and_then(|problem| problem.code), code, "{given}");
        };
        check(json!("20"), None);
        check(json!(0), Some("integer_below_min_value"));
        check(json!("101"), Some("integer_above_max_value"));
        check(json!("x"), Some("invalid_type"));
    }
}
