use super::*;
use serde_json::json;

fn fields(body: &str) -> Vec<FieldText> {
    let members = json::members(body.as_bytes()).expect("an object");
    members.into_iter().map(|(name, bytes)| FieldText { name, line: None, bytes }).collect()
}

fn options(body: &str) -> Options {
    let (options, problems) = Options::parse(&fields(body), CacheMode::Use);
    assert_eq!(problems, [], "{body}");
    options
}

/// Pointers of the problems.
fn check(body: &str, expect: &[&str]) {
    let (_, problems) = Options::parse(&fields(body), CacheMode::Use);
    let pointers: Vec<&str> = problems.iter().map(|problem| problem.pointer.as_str()).collect();
    assert_eq!(pointers, expect, "{body}: {problems:?}");
}

#[test]
fn nothing_given_is_the_defaults() {
    let expect = Options::default();
    assert_eq!(options("{}"), expect);
    assert_eq!(
        (expect.samples, expect.repeats, expect.cache, expect.chunk),
        (1, Repeats::Sample, CacheMode::Use, None)
    );
    let nulls = r#"{"model":null,"max_tokens":null,"params":null,"headers":null,"chunk":null,"salt":null,"samples":null,
        "repeats":null,"cache":null,"on_invalid":null,"priority":null,"max_age":null,"metadata":null}"#;
    assert_eq!(options(nulls), expect);
}

#[test]
fn every_field_is_read() {
    let options = options(
        r#"{"model":"claude-haiku-4-5","max_tokens":1e2,"params":{"temperature":1.50},"chunk":2,"salt":7.0,"samples":1000,
        "headers":{"Anthropic-Version":"2026-10-21","anthropic-beta":"b, a,b,"},
        "repeats":"share","cache":"bypass","on_invalid":"fail","priority":"low","max_age":"12h","metadata":{"team":"évals"}}"#,
    );
    assert_eq!(options.fields.model.as_deref(), Some("claude-haiku-4-5"));
    assert_eq!(options.fields.max_tokens, Some(100));
    assert_eq!(serde_json::to_string(&options.fields.params).expect("JSON"), r#"{"temperature":1.50}"#);
    assert_eq!(options.fields.headers.version.as_deref(), Some("2026-10-21"));
    assert_eq!(options.fields.headers.betas, Some(vec!["a".into(), "b".into()]));
    assert_eq!((options.chunk, options.samples), (Some(2), 1000));
    assert_eq!(options.salt.expect("a salt").value().to_string(), "7.0");
    assert_eq!((options.repeats, options.cache), (Repeats::Share, CacheMode::Bypass));
    assert_eq!((options.on_invalid, options.max_age), (OnInvalid::Fail, Some(Duration::from_secs(43_200))));
    assert_eq!(options.priority, Priority::Low);
    assert_eq!(options.metadata["team"], "évals");
}

#[test]
fn the_last_of_a_name_wins_and_alone_is_checked() {
    assert_eq!(options(r#"{"chunk":"no","chunk":3}"#).chunk, Some(3));
    check(r#"{"chunk":3,"chunk":"no"}"#, &["/chunk"]);
}

#[test]
fn wrong_values_are_problems_with_their_place() {
    for (body, expect) in [
        (r#"{"model":5}"#, "/model"),
        (r#"{"model":""}"#, "/model"),
        ("{\"model\":\"gpt-\\n\"}", "/model"),
        (r#"{"max_tokens":0}"#, "/max_tokens"),
        (r#"{"max_tokens":1.5}"#, "/max_tokens"),
        (r#"{"max_tokens":1e400}"#, "/max_tokens"),
        (r#"{"max_tokens":"100"}"#, "/max_tokens"),
        (r#"{"max_tokens":-1}"#, "/max_tokens"),
        (r#"{"params":[]}"#, "/params"),
        (r#"{"params":{"stream":true}}"#, "/params/stream"),
        (r#"{"params":{"model":7}}"#, "/params/model"),
        (r#"{"params":{"max_tokens":0}}"#, "/params/max_tokens"),
        (r#"{"params":{"a":"\ud800"}}"#, "/params/a"),
        (r#"{"params":{"a":1e99999999999999999999}}"#, "/params/a"),
        (r#"{"chunk":0}"#, "/chunk"),
        (r#"{"salt":true}"#, "/salt"),
        (r#"{"salt":{}}"#, "/salt"),
        (r#"{"samples":0}"#, "/samples"),
        (r#"{"samples":1001}"#, "/samples"),
        (r#"{"repeats":"Sample"}"#, "/repeats"),
        (r#"{"cache":"auto"}"#, "/cache"),
        (r#"{"cache":1}"#, "/cache"),
        (r#"{"headers":{"x-api-key":"a"}}"#, "/headers/x-api-key"),
        (r#"{"headers":"a"}"#, "/headers"),
        (r#"{"headers":{"anthropic-version":"2020-01-01"}}"#, "/headers/anthropic-version"),
        (r#"{"headers":{"anthropic-beta":["a"]}}"#, "/headers/anthropic-beta"),
        (r#"{"headers":{"anthropic-beta":"a\r\nx: y"}}"#, "/headers/anthropic-beta"),
        (r#"{"metadata":{"a":1}}"#, "/metadata/a"),
        (r#"{"metadata":{"":"x"}}"#, "/metadata/"),
        (r#"{"metadata":5}"#, "/metadata"),
        (r#"{"temperature":1}"#, "/temperature"),
        (r#"{"a/b":1}"#, "/a~1b"),
        (r#"{"deadline":"59m"}"#, "/deadline"),
        (r#"{"deadline":72}"#, "/deadline"),
        (r#"{"priority":"high"}"#, "/priority"),
        (r#"{"priority":1}"#, "/priority"),
        (r#"{"max_age":"999ms"}"#, "/max_age"),
        (r#"{"max_age":"soon"}"#, "/max_age"),
        (r#"{"max_age":86400}"#, "/max_age"),
        (r#"{"run":"x~"}"#, "/run"),
        (r#"{"run":5}"#, "/run"),
        (r#"{"on_invalid":"Fail"}"#, "/on_invalid"),
        (r#"{"on_invalid":true}"#, "/on_invalid"),
        (r#"{"batch":{"model":"x"}}"#, "/batch"),
    ] {
        check(body, &[expect]);
    }
    check(&format!(r#"{{"metadata":{{"a":"{}"}}}}"#, "x".repeat(513)), &["/metadata/a"]);
    check(&format!(r#"{{"metadata":{{"{}":""}}}}"#, "x".repeat(65)), &[&format!("/metadata/{}", "x".repeat(65))]);
    let pairs: serde_json::Map<String, Value> = (0..17).map(|n| (n.to_string(), json!(""))).collect();
    check(&json!({"metadata": pairs}).to_string(), &["/metadata"]);
}

#[test]
fn all_problems_are_told_in_the_order_of_the_body_with_the_remedy() {
    check(r#"{"samples":0,"zzz":1,"model":"m","chunk":"x"}"#, &["/samples", "/zzz", "/chunk"]);
    let (options, problems) = Options::parse(&fields(r#"{"temperature":1,"model":5}"#), CacheMode::Use);
    assert!(problems[0].message.contains("`temperature`") && problems[0].message.contains("`params`"), "{problems:?}");
    assert!(options.faulty);
}

#[test]
fn a_headers_line_goes_with_its_problems() {
    let field = FieldText { name: "chunk".into(), line: Some(3), bytes: Bytes::from_static(b"0") };
    let (_, problems) = Options::parse(&[field], CacheMode::Use);
    assert_eq!(problems[0].line, Some(3));
}

#[test]
fn who_says_nothing_of_the_cache_gets_the_team_s_mode() {
    let mode = |body: &str| Options::parse(&fields(body), CacheMode::Bypass).0.cache;
    assert_eq!(mode("{}"), CacheMode::Bypass);
    assert_eq!(mode(r#"{"cache":null}"#), CacheMode::Bypass);
    assert_eq!(mode(r#"{"cache":"use"}"#), CacheMode::Use);
}
