use super::*;
use crate::domain::{
    batch::FieldText,
    json,
    key::Question,
    route::{Glob, ProviderKind, Route},
};
use proptest::prelude::*;
use serde_json::json;

fn options(body: &str) -> Options {
    let members = json::members(body.as_bytes()).expect("an object");
    let fields: Vec<FieldText> =
        members.into_iter().map(|(name, bytes)| FieldText { name, line: None, bytes }).collect();
    Options::parse(&fields, crate::domain::batch::CacheMode::Use).0
}

fn read(batch: &str, text: &str) -> Result<Prompt, Vec<Problem>> {
    let bytes = Bytes::copy_from_slice(text.as_bytes());
    Prompt::parse(&PromptText { position: 3, line: None, bytes }, &options(batch), &Routes::default())
}

/// The body that is sent.
fn check(batch: &str, text: &str, expect: &str) {
    match read(batch, text) {
        Ok(prompt) => assert_eq!(String::from_utf8_lossy(&prompt.body_text()), expect, "{batch} {text}"),
        Err(problems) => panic_with(batch, text, &problems),
    }
}

fn panic_with(batch: &str, text: &str, problems: &[Problem]) -> ! {
    panic!("{batch} {text}: {problems:?}")
}

/// Pointers of the problems, less `/prompts/3`.
fn refused(batch: &str, text: &str, expect: &[&str]) {
    let problems = read(batch, text).expect_err(text);
    let pointers: Vec<&str> =
        problems.iter().map(|problem| problem.pointer.strip_prefix("/prompts/3").expect("its place")).collect();
    assert_eq!(pointers, expect, "{batch} {text}: {problems:?}");
}

const CLAUDE: &str = r#"{"model":"claude-haiku-4-5","max_tokens":100}"#;
const GPT: &str = r#"{"model":"gpt-5-mini","max_tokens":100}"#;

#[test]
fn a_string_is_one_user_message() {
    check(
        CLAUDE,
        r#""Say 0""#,
        r#"{"max_tokens":100,"messages":[{"content":"Say 0","role":"user"}],"model":"claude-haiku-4-5"}"#,
    );
    check(
        GPT,
        r#""Say 0""#,
        r#"{"max_completion_tokens":100,"messages":[{"content":"Say 0","role":"user"}],"model":"gpt-5-mini"}"#,
    );
    check(r#"{"model":"gpt-5"}"#, "\"\"", r#"{"messages":[{"content":"","role":"user"}],"model":"gpt-5"}"#);
}

#[test]
fn a_prompt_knows_who_answers_and_where() {
    let prompt = read(CLAUDE, r#"{"custom_id":"mine-2","model":"gpt-5","messages":[{"role":"user","content":"x"}]}"#)
        .expect("a prompt");
    assert_eq!((&prompt.account[..], &prompt.who[..], &prompt.model[..]), ("openai", "openai", "gpt-5"));
    assert_eq!((prompt.endpoint, prompt.custom_id.as_deref()), (Endpoint::ChatCompletions, Some("mine-2")));
    assert_eq!(prompt.headers, ApiHeaders::default());
    let prompt = read(CLAUDE, r#""x""#).expect("a prompt");
    assert_eq!((prompt.endpoint, prompt.custom_id), (Endpoint::Messages, None));
    assert_eq!(prompt.headers.version.as_deref(), Some("2023-06-01"));
}

#[test]
fn system_goes_where_the_provider_has_it() {
    let user = r#"{"role":"user","content":"x"}"#;
    let sent = r#"[{"content":"x","role":"user"}]"#;
    for (prompt, system) in [
        (format!(r#"{{"system":"Be brief.","messages":[{user}]}}"#), r#""Be brief.""#),
        (format!(r#"{{"messages":[{{"role":"system","content":"Be brief."}},{user}]}}"#), r#""Be brief.""#),
        (
            format!(r#"{{"system":[{{"type":"text","text":"a"}}],"messages":[{user}]}}"#),
            r#"[{"text":"a","type":"text"}]"#,
        ),
        (
            format!(
                r#"{{"messages":[{{"role":"system","content":"a"}},{{"role":"system","content":[{{"type":"text","text":"b"}}]}},{user}]}}"#
            ),
            r#"[{"text":"a","type":"text"},{"text":"b","type":"text"}]"#,
        ),
    ] {
        check(
            CLAUDE,
            &prompt,
            &format!(r#"{{"max_tokens":100,"messages":{sent},"model":"claude-haiku-4-5","system":{system}}}"#),
        );
    }
    let brief = r#"[{"content":"Be brief.","role":"system"},{"content":"x","role":"user"}]"#;
    for prompt in [
        format!(r#"{{"system":"Be brief.","messages":[{user}]}}"#),
        format!(r#"{{"messages":[{{"role":"system","content":"Be brief."}},{user}]}}"#),
    ] {
        check(r#"{"model":"gpt-5"}"#, &prompt, &format!(r#"{{"messages":{brief},"model":"gpt-5"}}"#));
    }
    refused(
        CLAUDE,
        &format!(r#"{{"system":"a","messages":[{{"role":"system","content":"b"}},{user}]}}"#),
        &["/system"],
    );
    refused(CLAUDE, r#"{"messages":[{"role":"system","content":"b"}]}"#, &["/messages"]);
    refused(
        CLAUDE,
        &format!(r#"{{"messages":[{{"role":"system","content":"b","cache_control":{{}}}},{user}]}}"#),
        &["/messages/0"],
    );
    refused(CLAUDE, &format!(r#"{{"system":5,"messages":[{user}]}}"#), &["/system"]);
    // A system message further on is the provider's affair.
    check(
        CLAUDE,
        &format!(r#"{{"messages":[{user},{{"role":"system","content":"b"}}]}}"#),
        r#"{"max_tokens":100,"messages":[{"content":"x","role":"user"},{"content":"b","role":"system"}],"model":"claude-haiku-4-5"}"#,
    );
}

#[test]
fn who_says_it_more_closely_wins() {
    let messages = r#""messages":[{"role":"user","content":"x"}]"#;
    let batch = r#"{"model":"gpt-b","max_tokens":1,"params":{"model":"gpt-bp","seed":1,"top_p":0.50,"max_completion_tokens":2}}"#;
    let sent = |rest: &str| format!(r#"{{{rest}}}"#).replace("MSG", r#""messages":[{"content":"x","role":"user"}]"#);
    check(
        batch,
        &format!("{{{messages}}}"),
        &sent(r#""max_completion_tokens":2,MSG,"model":"gpt-bp","seed":1,"top_p":0.50"#),
    );
    check(
        batch,
        &format!(r#"{{"model":"gpt-p","max_tokens":3,{messages}}}"#),
        &sent(r#""max_completion_tokens":3,MSG,"model":"gpt-p","seed":1,"top_p":0.50"#),
    );
    check(
        batch,
        &format!(
            r#"{{"model":"gpt-p","max_tokens":3,"params":{{"model":"gpt-pp","max_tokens":4,"seed":2,"x":{{"y":null}}}},{messages}}}"#
        ),
        &sent(r#""max_tokens":4,MSG,"model":"gpt-pp","seed":2,"top_p":0.50,"x":{"y":null}"#),
    );
    // The batch's system, too, is only a default.
    check(
        r#"{"model":"claude-b","max_tokens":1,"params":{"system":"batch"}}"#,
        &format!(r#"{{"system":"own",{messages}}}"#),
        &sent(r#""max_tokens":1,MSG,"model":"claude-b","system":"own""#),
    );
}

#[test]
fn native_bodies_only_get_what_they_lack() {
    let batch =
        r#"{"model":"gpt-b","max_tokens":1,"params":{"seed":1,"messages":[{"role":"user","content":"batch"}]}}"#;
    let own = r#""messages":[{"role":"user","content":"x"}]"#;
    for (rest, body, expect) in [
        ("", own, r#"{"max_completion_tokens":1,"messages":[{"content":"x","role":"user"}],"model":"gpt-b","seed":1}"#),
        (
            "",
            "\"seed\":null,\"max_output_tokens\":9",
            r#"{"max_output_tokens":9,"messages":[{"content":"batch","role":"user"}],"model":"gpt-b","seed":null}"#,
        ),
        (
            r#","params":{"seed":2,"top_p":1.0},"model":"gpt-p","max_tokens":5"#,
            own,
            r#"{"max_completion_tokens":5,"messages":[{"content":"x","role":"user"}],"model":"gpt-p","seed":2,"top_p":1.0}"#,
        ),
        (
            r#","params":{"seed":2},"model":"gpt-p""#,
            r#""model":"gpt-n","max_tokens":7,"seed":3,"messages":[{"role":"user","content":"x"}]"#,
            r#"{"max_tokens":7,"messages":[{"content":"x","role":"user"}],"model":"gpt-n","seed":3}"#,
        ),
    ] {
        check(batch, &format!(r#"{{"endpoint":"/v1/chat/completions","body":{{{body}}}{rest}}}"#), expect);
    }
    // A leading system message of a native body stays where its author put it.
    check(
        CLAUDE,
        r#"{"endpoint":"/v1/messages","body":{"messages":[{"role":"system","content":"b"}],"zzz":[1e400,1.50]}}"#,
        r#"{"max_tokens":100,"messages":[{"content":"b","role":"system"}],"model":"claude-haiku-4-5","zzz":[1e400,1.50]}"#,
    );
}

#[test]
fn lines_of_provider_files_get_nothing() {
    let batch = r#"{"model":"gpt-b","max_tokens":1,"params":{"seed":1},"headers":{"anthropic-beta":"b"}}"#;
    let openai = r#"{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"gpt-5","messages":[{"role":"user","content":"x"}]}}"#;
    check(batch, openai, r#"{"messages":[{"content":"x","role":"user"}],"model":"gpt-5"}"#);
    let anthropic =
        r#"{"custom_id":"a","params":{"model":"claude-x","max_tokens":5,"messages":[{"role":"user","content":"x"}]}}"#;
    check(batch, anthropic, r#"{"max_tokens":5,"messages":[{"content":"x","role":"user"}],"model":"claude-x"}"#);
    let prompt = read(batch, anthropic).expect("a prompt");
    assert_eq!((prompt.custom_id.as_deref(), &prompt.headers.betas[..]), (Some("a"), &["b".to_owned()][..]));
    refused(
        batch,
        r#"{"custom_id":"a","params":{"model":"claude-x","messages":[{"role":"user","content":"x"}]}}"#,
        &["/params/max_tokens"],
    );
    refused(batch, r#"{"custom_id":"a","params":{"max_tokens":5,"messages":[]}}"#, &["/params/model"]);
    refused(
        batch,
        r#"{"custom_id":"a","params":{"model":"claude-x","max_tokens":5},"max_tokens":5}"#,
        &["/max_tokens", "/params/messages"],
    );
    refused(batch, r#"{"method":"POST","url":"/v1/chat/completions","body":{"messages":[]}}"#, &["/body/model"]);
    refused(batch, r#"{"method":"GET","url":"/v1/chat/completions"}"#, &["/method", "/body"]);
    refused(batch, r#"{"method":"POST","body":{}}"#, &["/url"]);
    refused(
        batch,
        r#"{"method":"POST","url":"/v1/chat/completions","body":{"model":"gpt-5","messages":[{"role":"user","content":"x"}]},"params":{}}"#,
        &["/params"],
    );
}

#[test]
fn every_endpoint_takes_its_own_bodies() {
    for (endpoint, body, expect) in [
        (
            "responses",
            r#""input":"x","model":"gpt-5""#,
            r#"{"input":"x","max_output_tokens":100,"model":"gpt-5","seed":1}"#,
        ),
        (
            "responses",
            r#""input":[{"role":"user","content":"x"}],"max_output_tokens":5"#,
            r#"{"input":[{"content":"x","role":"user"}],"max_output_tokens":5,"model":"gpt-5-mini","seed":1}"#,
        ),
        (
            "responses",
            r#""prompt":{"id":"pmpt_1"},"max_completion_tokens":5"#,
            r#"{"max_completion_tokens":5,"model":"gpt-5-mini","prompt":{"id":"pmpt_1"},"seed":1}"#,
        ),
        (
            "completions",
            r#""prompt":"x","model":"davinci-002""#,
            r#"{"max_tokens":100,"model":"davinci-002","prompt":"x","seed":1}"#,
        ),
        (
            "embeddings",
            r#""input":["a","b"],"model":"text-embedding-3-small","encoding_format":"base64","seed":2"#,
            r#"{"encoding_format":"base64","input":["a","b"],"model":"text-embedding-3-small","seed":2}"#,
        ),
        (
            "moderations",
            r#""input":[{"type":"text","text":"x"}],"model":"omni-moderation-latest","seed":null"#,
            r#"{"input":[{"text":"x","type":"text"}],"model":"omni-moderation-latest","seed":null}"#,
        ),
    ] {
        let batch = r#"{"model":"gpt-5-mini","max_tokens":100,"params":{"seed":1}}"#;
        let native = format!(r#"{{"endpoint":"/v1/{endpoint}","body":{{{body}}}}}"#);
        check(batch, &native, expect);
        let prompt = read(batch, &native).expect("a prompt");
        assert_eq!((prompt.endpoint.path(), prompt.headers), (&*format!("/v1/{endpoint}"), ApiHeaders::default()));
    }
    // Our cap is one of what is written: with nothing written it goes nowhere, even where the prompt names it.
    check(
        "{}",
        r#"{"endpoint":"/v1/embeddings","body":{"input":[1,2]},"max_tokens":5,"model":"text-x"}"#,
        r#"{"input":[1,2],"model":"text-x"}"#,
    );
    check(
        GPT,
        r#"{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{"model":"text-x","input":"x"}}"#,
        r#"{"input":"x","model":"text-x"}"#,
    );
    // Strings and messages go to chat, whatever the model is good for.
    assert_eq!(read(r#"{"model":"text-x"}"#, r#""x""#).expect("a prompt").endpoint, Endpoint::ChatCompletions);
}

#[test]
fn a_body_without_its_subject_is_refused() {
    let native = |endpoint: &str, body: &str| format!(r#"{{"endpoint":"/v1/{endpoint}","body":{{{body}}}}}"#);
    for (endpoint, subject) in
        [("responses", "input"), ("embeddings", "input"), ("moderations", "input"), ("completions", "prompt")]
    {
        let at = format!("/body/{subject}");
        refused(GPT, &native(endpoint, ""), &[&at]);
        for odd in ["null", "5", "[]", "{}", "true"] {
            refused(GPT, &native(endpoint, &format!(r#""{subject}":{odd}"#)), &[&at]);
        }
        for fine in [r#""""#, r#""x""#, "[1]", r#"["x"]"#, "[[1],[2]]", r#"[{"type":"text"}]"#] {
            assert!(read(GPT, &native(endpoint, &format!(r#""{subject}":{fine}"#))).is_ok(), "{endpoint} {fine}");
        }
        let params = format!(r#"{{"model":"gpt-5","params":{{"{subject}":7}}}}"#);
        refused(&params, &native(endpoint, ""), &[&format!("/{subject}")]);
    }
    for instead in [r#""prompt":{"id":"p"}"#, r#""previous_response_id":"resp_1""#, r#""conversation":"conv_1""#] {
        assert!(read(GPT, &native("responses", instead)).is_ok(), "{instead}");
    }
    refused(GPT, &native("responses", r#""prompt":null"#), &["/body/input"]);
    refused(GPT, &native("embeddings", r#""input":"x","stream":true"#), &["/body/stream"]);
    refused(
        GPT,
        r#"{"endpoint":"/v1/responses","body":{"input":"x"},"headers":{"anthropic-beta":"b"}}"#,
        &["/headers"],
    );
    refused(GPT, r#"{"method":"POST","url":"/v1/embeddings","body":{"model":"text-x"}}"#, &["/body/input"]);
}

#[test]
fn where_there_are_no_samples_none_can_be_asked_for() {
    let native = |endpoint: &str| format!(r#"{{"endpoint":"/v1/{endpoint}","body":{{"input":"x"}}}}"#);
    for endpoint in ["embeddings", "moderations"] {
        let problems = read(r#"{"model":"omni-x","samples":2}"#, &native(endpoint)).expect_err("no samples");
        assert_eq!(problems[0].pointer, "/prompts/3");
        assert!(problems[0].message.contains("`samples` is 2"), "{}", problems[0].message);
        assert!(read(r#"{"model":"omni-x","samples":1,"repeats":"sample"}"#, &native(endpoint)).is_ok());
    }
    assert!(read(r#"{"model":"gpt-5","samples":2}"#, &native("responses")).is_ok());
}

#[test]
fn inputs_are_texts_and_token_lists() {
    for (input, expect) in [
        (r#""x""#, 1),
        ("[1,2,3]", 1),
        (r#"["a"]"#, 1),
        (r#"["a","b","a"]"#, 3),
        ("[[1,2],[3]]", 2),
        (r#"["a",[1],2]"#, 3),
        (r#"[{"type":"text","text":"a"},{"type":"text","text":"b"}]"#, 2),
    ] {
        let text = format!(r#"{{"endpoint":"/v1/embeddings","body":{{"model":"text-x","input":{input}}}}}"#);
        assert_eq!(read("{}", &text).expect("a prompt").inputs(), expect, "{input}");
    }
    assert_eq!(read(GPT, r#""x""#).expect("a prompt").inputs(), 1);
}

#[test]
fn servers_that_speak_openais_protocol_get_the_old_name_of_the_cap() {
    let routes = Routes::new(vec![Route {
        account: "vllm".into(),
        who: "vllm".into(),
        kind: ProviderKind::OpenAiBatch,
        models: vec![Glob::parse("*").expect("a pattern")],
    }]);
    let text = PromptText { position: 0, line: None, bytes: Bytes::from_static(b"\"x\"") };
    let prompt = Prompt::parse(&text, &options(r#"{"model":"llama-3","max_tokens":5}"#), &routes).expect("a prompt");
    assert_eq!(prompt.body["max_tokens"], json!(5));
}

#[test]
fn headers_of_a_prompt_replace_the_batchs_one_by_one() {
    let batch =
        r#"{"model":"claude-x","max_tokens":1,"headers":{"anthropic-version":"2026-10-21","anthropic-beta":"a"}}"#;
    let headers = |own: &str| {
        let text = format!(r#"{{"messages":[{{"role":"user","content":"x"}}],"headers":{own}}}"#);
        let headers = read(batch, &text).expect("a prompt").headers;
        (headers.version.expect("a version"), headers.betas)
    };
    assert_eq!(headers("{}"), ("2026-10-21".into(), vec!["a".into()]));
    assert_eq!(headers(r#"{"anthropic-beta":"c,b"}"#), ("2026-10-21".into(), vec!["b".into(), "c".into()]));
    assert_eq!(headers(r#"{"anthropic-beta":"","anthropic-version":"2023-06-01"}"#), ("2023-06-01".into(), vec![]));
    // The batch's are no concern of an OpenAI prompt; its own are a mistake.
    assert!(read(batch, r#"{"model":"gpt-5","messages":[{"role":"user","content":"x"}]}"#).is_ok());
    refused(
        batch,
        r#"{"model":"gpt-5","messages":[{"role":"user","content":"x"}],"headers":{"anthropic-beta":"b"}}"#,
        &["/headers"],
    );
}

#[test]
fn what_cannot_be_asked_is_refused_with_its_place() {
    let x = r#""messages":[{"role":"user","content":"x"}]"#;
    for (text, expect) in [
        ("5".to_owned(), &[""][..]),
        ("null".into(), &[""]),
        ("[]".into(), &[""]),
        ("{}".into(), &["/messages"]),
        (r#"{"custom_id":"a","params":{"temperature":0}}"#.into(), &["/messages"]),
        (r#"{"messages":[]}"#.into(), &["/messages"]),
        (r#"{"messages":"x"}"#.into(), &["/messages"]),
        (r#"{"messages":[5]}"#.into(), &["/messages/0"]),
        (
            r#"{"messages":[{"content":"x"},{"role":"user"},{"role":"user","content":5}]}"#.into(),
            &["/messages/0/role", "/messages/1/content", "/messages/2/content"],
        ),
        (format!(r#"{{{x},"temperature":0,"top_p":1}}"#), &["/temperature", "/top_p"]),
        (format!(r#"{{{x},"params":{{"messages":[]}}}}"#), &["/params/messages"]),
        (format!(r#"{{{x},"params":{{"stream":true}}}}"#), &["/params/stream"]),
        (format!(r#"{{{x},"params":{{"max_tokens":0}}}}"#), &["/params/max_tokens"]),
        (format!(r#"{{{x},"params":{{"max_tokens":null}}}}"#), &["/params/max_tokens"]),
        (format!(r#"{{{x},"params":5}}"#), &["/params"]),
        (format!(r#"{{{x},"max_tokens":"5"}}"#), &["/max_tokens"]),
        (format!(r#"{{{x},"model":""}}"#), &["/model"]),
        (format!(r#"{{{x},"model":"llama-3"}}"#), &["/model"]),
        (format!(r#"{{{x},"params":{{"model":5}}}}"#), &["/params/model"]),
        (format!(r#"{{{x},"custom_id":5}}"#), &["/custom_id"]),
        (format!(r#"{{{x},"custom_id":""}}"#), &["/custom_id"]),
        (format!(r#"{{{x},"custom_id":"{}"}}"#, "é".repeat(257)), &["/custom_id"]),
        (format!(r#"{{{x},"headers":{{"x-api-key":"k"}}}}"#), &["/headers/x-api-key"]),
        (r#"{"batch":{"model":"x"}}"#.into(), &["/batch"]),
        (r#"{"endpoint":"/v1/messages"}"#.into(), &["/body"]),
        (format!(r#"{{"body":{{{x}}}}}"#), &["/endpoint"]),
        (format!(r#"{{"endpoint":"/v1/videos","body":{{{x}}}}}"#), &["/endpoint"]),
        (format!(r#"{{"endpoint":"/v1/embeddings","body":{{{x}}}}}"#), &["/endpoint"]),
        (format!(r#"{{"endpoint":7,"body":{{{x}}}}}"#), &["/endpoint"]),
        (r#"{"endpoint":"/v1/messages","body":[]}"#.into(), &["/body"]),
        (r#"{"endpoint":"/v1/messages","body":{}}"#.into(), &["/body/messages"]),
        (format!(r#"{{"endpoint":"/v1/messages","body":{{{x},"stream":true}}}}"#), &["/body/stream"]),
        (format!(r#"{{"endpoint":"/v1/messages","body":{{{x},"max_tokens":1.5}}}}"#), &["/body/max_tokens"]),
        (format!(r#"{{"endpoint":"/v1/messages","body":{{{x}}},"system":"a","zzz":1}}"#), &["/system", "/zzz"]),
        (format!(r#"{{"endpoint":"/v1/chat/completions","body":{{{x}}}}}"#), &["/endpoint"]),
        (r#"{"messages":[{"role":"user","content":"a\ud800"}]}"#.into(), &["/messages/0/content"]),
        (format!(r#"{{{x},"params":{{"seed":1e99999999999999999999}}}}"#), &["/params/seed"]),
    ] {
        refused(CLAUDE, &text, expect);
    }
}

#[test]
fn light_checks_stay_light() {
    for text in [
        r#"{"messages":[{"role":"assistant","tool_calls":[]},{"role":"tool","content":"x","tool_call_id":"1"}]}"#,
        r#"{"messages":[{"role":"assistant","content":null,"refusal":"no"},{"role":"developer","content":[]}]}"#,
        r#"{"messages":[{"role":"user","content":"x","new":1}],"params":{"stream":false,"new":{"a":[]}},"custom_id":null,"model":null}"#,
    ] {
        assert_eq!(read(GPT, text).err(), None, "{text}");
    }
    assert!(
        read(CLAUDE, &format!(r#"{{"messages":[{{"role":"user","content":"x"}}],"custom_id":"{}"}}"#, "é".repeat(256)))
            .is_ok()
    );
}

#[test]
fn what_is_missing_is_named_with_the_remedy() {
    let message = |batch: &str, text: &str| read(batch, text).expect_err(text)[0].message.clone();
    refused(r#"{"model":"claude-x"}"#, r#""x""#, &["/max_tokens"]);
    assert!(message(r#"{"model":"claude-x"}"#, r#""x""#).contains("for the whole batch"));
    refused("{}", r#""x""#, &["/model"]);
    let other = message(CLAUDE, r#"{"endpoint":"/v1/images/edits","body":{}}"#);
    assert!(other.contains("not supported") && other.contains("`/v1/messages`, `/v1/chat/completions`"), "{other}");
    assert!(message(CLAUDE, r#"{"endpoint":"/v1/nonsense","body":{}}"#).contains("no endpoint"));
    let misfit = message(CLAUDE, r#"{"endpoint":"/v1/chat/completions","body":{"messages":[]}}"#);
    assert!(misfit.contains("claude-haiku-4-5") && misfit.contains("use `/v1/messages`"), "{misfit}");
}

#[test]
fn what_the_batch_got_wrong_is_not_told_again_by_every_prompt() {
    assert_eq!(read(r#"{"model":5}"#, r#""x""#), Err(vec![]));
    assert_eq!(read(r#"{"model":"claude-x","max_tokens":"many"}"#, r#""x""#), Err(vec![]));
    refused(r#"{"model":5}"#, r#"{"messages":[]}"#, &["/messages"]);
}

#[test]
fn an_ndjson_lines_problems_name_the_line() {
    let text = PromptText { position: 0, line: Some(7), bytes: Bytes::from_static(b"5") };
    let problems = Prompt::parse(&text, &Options::default(), &Routes::default()).expect_err("no prompt");
    assert_eq!((problems[0].line, &problems[0].pointer[..]), (Some(7), "/prompts/0"));
}

#[test]
fn the_id_of_a_bad_prompt_is_read_where_it_can_be() {
    for (text, expect) in [
        (r#"{"custom_id": "a", "mesages": 5}"#, Some("a")),
        (r#"{"custom_id": "a", "messages": "\ud800", "custom_id": "b"}"#, Some("b")),
        (r#"{"custom_id": "\ud800"}"#, None),
        (r#"{"custom_id": 5}"#, None),
        (r#"{"custom_id": ""}"#, None),
        (r#"["custom_id"]"#, None),
        ("5", None),
    ] {
        let text = PromptText { position: 0, line: None, bytes: Bytes::copy_from_slice(text.as_bytes()) };
        assert_eq!(text.custom_id().as_deref(), expect, "{text:?}");
    }
}

/// Members of every form and their neighbours, thrown together.
fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop::sample::select(vec![
        json!(null),
        json!(true),
        json!(0),
        json!(5),
        json!(1.5),
        json!(""),
        json!("user"),
        json!("system"),
        json!("claude-x"),
        json!("gpt-5"),
        json!("POST"),
        json!("/v1/messages"),
        json!("/v1/chat/completions"),
        json!("/v1/responses"),
        json!("/v1/embeddings"),
        json!("/v1/completions"),
        json!([{"role": "user", "content": "x"}]),
    ]);
    let name = prop::sample::select(vec![
        "messages",
        "system",
        "model",
        "max_tokens",
        "params",
        "headers",
        "custom_id",
        "endpoint",
        "body",
        "url",
        "method",
        "stream",
        "role",
        "content",
        "anthropic-beta",
        "max_completion_tokens",
        "input",
        "prompt",
    ]);
    leaf.prop_recursive(3, 24, 6, move |inner| {
        prop_oneof![
            1 => prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            3 => prop::collection::btree_map(name.clone().prop_map(str::to_owned), inner, 0..7)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whatever comes in: no panic, and what comes out can be asked, keyed and sent.
    #[test]
    fn what_is_accepted_can_be_asked(value in anything(), params in anything(), faulty in any::<bool>()) {
        let model = if faulty { json!(5) } else { json!("claude-b") };
        let batch = options(&json!({"model": model, "max_tokens": 9, "params": params}).to_string());
        let text = PromptText { position: 0, line: None, bytes: value.to_string().into() };
        match Prompt::parse(&text, &batch, &Routes::default()) {
            Ok(prompt) => {
                prop_assert!(!faulty);
                prop_assert_eq!(prompt.body["model"].as_str(), Some(&prompt.model[..]));
                prop_assert_ne!(&prompt.body["stream"], &json!(true));
                let subject = ["messages", "input", "prompt"].map(|name| &prompt.body[name]);
                prop_assert!(subject.iter().any(|given| !given.is_null()));
                let anthropic = prompt.account == "anthropic";
                prop_assert_eq!(anthropic, prompt.endpoint == Endpoint::Messages);
                prop_assert_eq!(anthropic, prompt.headers.version.is_some());
                prop_assert!(!anthropic || prompt.body["max_tokens"].as_u64() > Some(0));
                prop_assert_eq!(json::parse(&prompt.body_text()), Ok(prompt.body.clone()));
                prop_assert!(Question::new(&prompt, None).is_ok());
            }
            Err(problems) => prop_assert!(batch.faulty || !problems.is_empty()),
        }
    }
}
