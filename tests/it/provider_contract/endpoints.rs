//! The endpoints beyond conversations: OpenAI's other four, and both versions of Anthropic's API.

use super::desk::{Desk, Order, answer, failure};
use base64::{Engine, engine::general_purpose::STANDARD};
use batchgate::{
    domain::{
        outcome::{FailureCode, Finish, Reading},
        prompt::{ApiHeaders, Endpoint},
    },
    provider::{LineOutcome, Refusal, RemoteStatus},
};
use serde_json::{Value, json};

/// Every prompt has its own answer, with the text, model and tokens of the oracle.
async fn come_back(desk: &Desk, order: &Order) -> Vec<LineOutcome> {
    let outcomes = desk.outcomes(order).await;
    assert_eq!(outcomes.len(), order.bodies.len());
    for (id, outcome) in &outcomes {
        desk.check_answer(order, id, outcome).await;
    }
    outcomes.into_values().collect()
}

fn reading(outcome: &LineOutcome) -> &Reading {
    &answer(outcome).reading
}

fn body(outcome: &LineOutcome) -> Value {
    serde_json::from_slice(&answer(outcome).body).expect("one JSON value")
}

pub(super) async fn responses_come_back_to_their_prompts(desk: Desk) {
    if !desk.is_openai() {
        return;
    }
    let bodies = (0..20).map(|number| {
        let text = format!("Say {number}{}", if number == 7 { " [[unicode]]" } else { "" });
        let parts = json!([{"role": "user", "content": [{"type": "input_text", "text": text}]}]);
        let input = if number % 2 == 0 { json!(text) } else { parts };
        json!({"model": "gpt-5-mini", "input": input, "max_output_tokens": 100})
    });
    let order = desk.order_at(Endpoint::Responses, "respond", bodies.collect());
    for outcome in come_back(&desk, &order).await {
        let reading = reading(&outcome);
        assert_eq!((reading.finish, reading.stop_reason.as_deref()), (Some(Finish::Stop), Some("completed")));
        assert_eq!(reading.model.as_deref(), Some("gpt-5-mini-2025-08-07"));
        assert!(reading.usage.expect("usage").output_tokens > 64, "reasoning is output");
    }
}

pub(super) async fn responses_follow_the_markers(desk: Desk) {
    if !desk.is_openai() {
        return;
    }
    let texts = ["[[refuse]]", "[[tool]]", "[[empty]]", "[[nochoices]]", "[[truncate]]", "[[cached]] twice"];
    let bodies = texts.map(|text| json!({"model": "gpt-4.1", "input": text})).to_vec();
    let order = desk.order_at(Endpoint::Responses, "marks", bodies);
    let outcomes: Vec<_> = desk.outcomes(&order).await.into_values().collect();
    let read = |index: usize| {
        let reading = reading(&outcomes[index]);
        (reading.completion.as_deref().map(str::len), reading.finish)
    };
    assert_eq!(read(0), (None, Some(Finish::Refusal)));
    assert_eq!(read(1), (None, Some(Finish::ToolUse)));
    assert_eq!(read(2), (Some(0), Some(Finish::Stop)));
    let failure = failure(&outcomes[3]);
    assert_eq!((failure.code, failure.retryable), (FailureCode::EmptyAnswer, false));
    assert_eq!(reading(&outcomes[4]).finish, Some(Finish::Length));
    assert_eq!(reading(&outcomes[4]).stop_reason.as_deref(), Some("max_output_tokens"));
    let usage = reading(&outcomes[5]).usage.expect("usage");
    assert!(usage.cached_input_tokens > 0 && usage.cached_input_tokens < usage.input_tokens);
}

pub(super) async fn completions_come_back_to_their_prompts(desk: Desk) {
    if !desk.is_openai() {
        return;
    }
    let bodies = ["a", "b [[truncate]]", "c [[unicode]]"]
        .map(|text| json!({"model": "gpt-3.5-turbo-instruct", "prompt": text, "n": 2, "max_tokens": 9}));
    let order = desk.order_at(Endpoint::Completions, "complete", bodies.to_vec());
    let outcomes = come_back(&desk, &order).await;
    let finish: Vec<_> = outcomes.iter().map(|outcome| reading(outcome).finish).collect();
    assert_eq!(finish, [Some(Finish::Stop), Some(Finish::Length), Some(Finish::Stop)]);
}

fn embed(input: &Value, rest: &Value) -> Value {
    let mut body = json!({"model": "text-embedding-3-small", "input": input});
    body.as_object_mut().expect("an object").extend(rest.as_object().expect("an object").clone());
    body
}

pub(super) async fn vectors_belong_to_their_inputs(desk: Desk) {
    if !desk.is_openai() {
        return;
    }
    let bodies = vec![
        embed(&json!(["a", "b"]), &json!({})),
        embed(&json!("b"), &json!({})),
        embed(&json!("b"), &json!({"encoding_format": "base64"})),
        embed(&json!([1, 2, 3]), &json!({})),
        embed(&json!([[1, 2, 3], [4]]), &json!({})),
    ];
    let order = desk.order_at(Endpoint::Embeddings, "embed", bodies);
    let outcomes = desk.outcomes(&order).await;
    for (id, outcome) in &outcomes {
        let oracle = desk.sim.oracle_at("openai", "/v1/embeddings", &order.bodies[id]).await;
        let reading = reading(outcome);
        assert_eq!((&reading.completion, reading.finish, &reading.stop_reason), (&None, None, &None));
        assert_eq!(reading.model.as_deref(), Some("text-embedding-3-small"));
        let usage = reading.usage.expect("usage");
        assert_eq!(Some(usage.input_tokens), oracle["input_tokens"].as_u64());
        assert_eq!((usage.cached_input_tokens, usage.output_tokens), (0, 0));
    }
    let data: Vec<Value> = outcomes.values().map(|outcome| body(outcome)["data"].clone()).collect();
    let counts: Vec<_> = data.iter().map(|data| data.as_array().map(Vec::len)).collect();
    assert_eq!(counts, [2, 1, 1, 1, 2].map(Some));
    let vector = |prompt: usize, index: usize| &data[prompt][index]["embedding"];
    assert_eq!(vector(0, 1), vector(1, 0));
    assert_ne!(vector(0, 0), vector(0, 1));
    assert_eq!(vector(3, 0), vector(4, 0), "one list of tokens is one input");
    let packed = STANDARD.decode(vector(2, 0).as_str().expect("base64")).expect("base64");
    let numbers: Vec<f64> = packed.as_chunks().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect();
    assert_eq!(json!(numbers), *vector(1, 0));
}

pub(super) async fn a_huge_vector_is_an_answer(desk: Desk) {
    if !desk.is_openai() {
        return;
    }
    let bodies = vec![
        embed(&json!("a"), &json!({"dimensions": 500_000})),
        embed(&json!("b"), &json!({"dimensions": 500_000, "encoding_format": "base64"})),
        embed(&json!("c"), &json!({})),
    ];
    let order = desk.order_at(Endpoint::Embeddings, "huge", bodies);
    let sizes: Vec<_> = desk.outcomes(&order).await.values().map(|outcome| answer(outcome).body.len()).collect();
    assert!(sizes[0] > 3_000_000 && sizes[1] > 2_600_000 && sizes[2] < 1_000, "{sizes:?}");
}

/// What the plan's count of inputs is for: nothing of such a batch is answered.
pub(super) async fn inputs_beyond_the_limit_are_refused_whole(desk: Desk) {
    let limit = desk.provider.limits(Endpoint::Embeddings).max_inputs;
    if !desk.is_openai() {
        assert_eq!(limit, None);
        return;
    }
    let most = usize::try_from(limit.expect("a limit")).expect("small");
    let inputs = |count: usize| embed(&json!(vec!["x"; count]), &json!({}));
    let fitting = desk.order_at(Endpoint::Embeddings, "fit", vec![inputs(most - 1), inputs(1)]);
    assert_eq!(desk.outcomes(&fitting).await.len(), 2);
    let over = desk.order_at(Endpoint::Embeddings, "over", vec![inputs(most), inputs(1)]);
    let refused = desk.settled(&desk.created(&over).await).await;
    assert!(matches!(refused, RemoteStatus::Refused(Refusal::Whole { .. })), "{refused:?}");
}

pub(super) async fn moderations_judge_each_input(desk: Desk) {
    if !desk.is_openai() {
        return;
    }
    let judge = |input: Value| json!({"model": "omni-moderation-latest", "input": input});
    let bodies = vec![
        judge(json!("fine")),
        judge(json!("[[flag]]")),
        judge(json!(["fine", "[[flag]]"])),
        judge(json!([{"type": "text", "text": "fine"}])),
    ];
    let order = desk.order_at(Endpoint::Moderations, "judge", bodies);
    let outcomes: Vec<_> = desk.outcomes(&order).await.into_values().collect();
    let flagged = |outcome: &LineOutcome| -> Vec<bool> {
        let results = body(outcome)["results"].as_array().expect("results").clone();
        results.iter().map(|result| result["flagged"] == true).collect()
    };
    let flags: Vec<_> = outcomes.iter().map(flagged).collect();
    assert_eq!(flags, [vec![false], vec![true], vec![false, true], vec![false]]);
    for outcome in &outcomes {
        let model = Some("omni-moderation-latest".to_owned());
        assert_eq!(*reading(outcome), Reading { model, ..Reading::default() });
    }
}

/// The newer version refuses `temperature`; the prompt's own headers reach the provider.
pub(super) async fn both_versions_of_anthropic_are_asked(desk: Desk) {
    if desk.is_openai() {
        return;
    }
    for (version, refused) in [(None, false), (Some("2023-06-01"), false), (Some("2026-10-21"), true)] {
        let mut order = desk.order("version", &["a", "b"]);
        order.bodies.values_mut().for_each(|body| body["temperature"] = json!(1));
        order = desk.order_of("version", order.bodies.into_values().collect());
        order.parcel.headers =
            ApiHeaders { version: version.map(str::to_owned), betas: vec!["output-300k-2026-03-24".to_owned()] };
        for (id, outcome) in &desk.outcomes(&order).await {
            if refused {
                assert_eq!(failure(outcome).code, FailureCode::InvalidRequest);
            } else {
                desk.check_answer(&order, id, outcome).await;
            }
        }
    }
}
