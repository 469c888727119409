//! How Anthropic talks: both ways to send a key, versions, headers, the error envelope.

use std::collections::HashMap;

use http::{HeaderMap, header};
use serde_json::{Value, json};

use crate::sim::{calls::Call, clock::rfc3339, problem::Problem};

const VERSIONS: [&str; 2] = ["2023-06-01", "2026-10-21"];

/// The key may come as `x-api-key` or as a Bearer token; if both come, they must agree.
pub(crate) fn authenticate(headers: &HeaderMap, keys: &HashMap<String, String>) -> Result<String, Problem> {
    let text = |name: &str| headers.get(name).and_then(|given| given.to_str().ok()).filter(|given| !given.is_empty());
    let bearer =
        text(header::AUTHORIZATION.as_str()).and_then(|given| given.split_once(' ')).map(|(_, key)| key.trim());
    let bearer = bearer.filter(|key| !key.is_empty());
    let key = match (text("x-api-key"), bearer) {
        (None, None) => return Err(Problem::new(401, "authentication_error", "x-api-key header is required")),
        (Some(one), Some(other)) if one != other => None,
        (Some(key), _) | (None, Some(key)) => keys.get(key),
    };
    key.cloned().ok_or_else(|| Problem::new(401, "authentication_error", "invalid x-api-key"))
}

pub(crate) fn envelope(problem: &Problem, request_id: &str) -> Value {
    json!({
        "type": "error", "error": {"type": problem.kind, "message": problem.message}, "request_id": request_id,
    })
}

pub(crate) fn headers(call: &Call) -> Vec<(&'static str, String)> {
    let quota = call.quota;
    let reset = rfc3339(call.now() + quota.reset_s);
    vec![
        ("request-id", call.request_id.clone()),
        ("anthropic-organization-id", format!("org-{}", call.account)),
        ("anthropic-workspace-id", format!("wrkspc_{}", call.account)),
        ("anthropic-ratelimit-requests-limit", quota.limit.to_string()),
        ("anthropic-ratelimit-requests-remaining", quota.remaining.to_string()),
        ("anthropic-ratelimit-requests-reset", reset.clone()),
        ("anthropic-ratelimit-tokens-limit", "10000000".into()),
        ("anthropic-ratelimit-tokens-remaining", "9999000".into()),
        ("anthropic-ratelimit-tokens-reset", reset.clone()),
        ("anthropic-ratelimit-input-tokens-limit", "8000000".into()),
        ("anthropic-ratelimit-input-tokens-remaining", "7999000".into()),
        ("anthropic-ratelimit-input-tokens-reset", reset.clone()),
        ("anthropic-ratelimit-output-tokens-limit", "2000000".into()),
        ("anthropic-ratelimit-output-tokens-remaining", "1999000".into()),
        ("anthropic-ratelimit-output-tokens-reset", reset),
    ]
}

/// The version a call names; it must be a known one unless the settings say otherwise.
pub(crate) fn version(call: &Call) -> Result<String, Problem> {
    let given = call.parts.headers.get("anthropic-version").and_then(|given| given.to_str().ok()).unwrap_or_default();
    if VERSIONS.contains(&given) || !call.sim.world().settings.anthropic.require_version {
        return Ok(given.to_owned());
    }
    Err(Problem::invalid(if given.is_empty() {
        "anthropic-version: header is required".into()
    } else {
        format!("anthropic-version: '{given}' is not a valid version")
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_comes_in_either_way() {
        let keys = HashMap::from([("k".to_owned(), "team".to_owned())]);
        let check = |given: &[(&'static str, &str)], expected: Option<&str>| {
            let pairs = given
                .iter()
                .map(|(name, value)| (http::HeaderName::from_static(name), value.parse().expect("a header")));
            let headers: HeaderMap = pairs.collect();
            assert_eq!(authenticate(&headers, &keys).ok().as_deref(), expected, "{given:?}");
        };
        check(&[("x-api-key", "k")], Some("team"));
        check(&[("authorization", "Bearer k")], Some("team"));
        check(&[("authorization", "Bearer k"), ("x-api-key", "k")], Some("team"));
        check(&[("authorization", "Bearer k"), ("x-api-key", "other")], None);
        check(&[("x-api-key", "other")], None);
        check(&[], None);
    }
}
