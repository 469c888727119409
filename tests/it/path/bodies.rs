//! One batch, many spellings: order of members, white space, byte order marks, line ends.

use crate::support::{
    Batch, Kind, World, again, check,
    check::{answered, paid, right},
    claude,
    client::{JSON, NDJSON, id},
    for_both, gpt,
};
use serde_json::{Value, json};

for_both!(json_members_come_in_any_order, line_ends_marks_and_blank_lines_do_not_matter, bodies_arrive_in_any_slices);

async fn json_members_come_in_any_order(kind: Kind) {
    let world = World::new(kind).await;
    let batch = Batch::of([claude("Say 0"), claude("Say 1"), gpt("Say 2")])
        .field("chunk", 1)
        .field("metadata", json!({"a": "b"}));
    let first = check(&world, &batch).await;
    let prompts = Value::Array(batch.prompts.iter().map(|prompt| prompt.sent.clone()).collect());
    let members = [
        ("prompts", prompts.to_string()),
        ("model", "\"claude-haiku-4-5\"".into()),
        ("max_tokens", "100".into()),
        ("chunk", "1".into()),
        ("metadata", "{\"a\":\"b\"}".into()),
    ];
    let before = paid(&world).await;
    for turn in 0..members.len() {
        let mut turned = members.clone();
        turned.rotate_left(turn);
        let text: Vec<String> = turned.iter().map(|(name, value)| format!(" \"{name}\" :\r\n{value}\t")).collect();
        let body = format!("\n{{{}}}\n", text.join(","));
        let object = world.client().post("/batches", JSON, body).await.accepted();
        assert_eq!(object["metadata"], json!({"a": "b"}), "{object}");
        assert_eq!(object["status"], "ended", "everything is known: {object}");
        right(&batch, &world.client().results(id(&object)).await);
    }
    assert_eq!(paid(&world).await, before, "one question however it is written");
    again(&world, &batch, &first).await;
}

async fn line_ends_marks_and_blank_lines_do_not_matter(kind: Kind) {
    let world = World::new(kind).await;
    let batch = Batch::of([claude("Say 0"), gpt("Say 1"), claude("Say 2")]).field("chunk", 2);
    let (_, body) = batch.clone().ndjson().body();
    let crlf = body.replace('\n', "\r\n");
    let blank = body.replace('\n', "\n\n \t\r\n");
    let spellings = [
        body.clone(),
        crlf.clone(),
        blank,
        format!("\u{feff}{body}"),
        format!("\u{feff}\r\n\r\n{crlf}"),
        body.trim_end().to_owned(),
        format!("\n\n{body}\n\n"),
    ];
    for (n, spelling) in spellings.into_iter().enumerate() {
        let object = world.client().post("/batches", NDJSON, spelling.clone()).await.accepted();
        let answered = answered(&world, &batch, id(&object)).await;
        let cached = answered.object["counts"]["cached"].as_u64();
        assert_eq!(cached, Some(if n == 0 { 0 } else { 3 }), "spelling {n} asks the same: {spelling:?}");
    }
    let object = world.client().post("/batches", JSON, format!("\u{feff}{}", batch.body().1)).await.accepted();
    right(&batch, &world.client().results(id(&object)).await);
    check(&world, &batch).await;
}

/// A header may be absent if every line says all it needs; and the body may come in pieces of any size.
async fn bodies_arrive_in_any_slices(kind: Kind) {
    let world = World::new(kind).await;
    let batch = Batch::of((0..40).map(|n| claude(&format!("Säg «{n}» \u{1f600}").repeat(n + 1))));
    for (kind, body) in [batch.body(), batch.clone().ndjson().body()] {
        for size in [1, 7, 64, 4096] {
            let pieces: Vec<Result<Vec<u8>, std::io::Error>> =
                body.as_bytes().chunks(size).map(|piece| Ok(piece.to_vec())).collect();
            let stream = reqwest::Body::wrap_stream(futures_util::stream::iter(pieces));
            let object = world.client().post("/batches", kind, stream).await.accepted();
            answered(&world, &batch, id(&object)).await;
        }
    }
    check(&world, &batch).await;
}
