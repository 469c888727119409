//! Bodies that cannot be read, or are no batch.

use super::{check, json, ndjson};

#[tokio::test]
async fn json_that_cannot_be_read_is_a_400() {
    let deep = |open: &str, close: &str, levels: usize| format!("{}1{}", open.repeat(levels), close.repeat(levels));
    check(vec![
        json("", 400, ""),
        json(" \n", 400, ""),
        json("{", 400, ""),
        json("nonsense", 400, ""),
        json("{\"prompts\": [\"a\"]", 400, ""),
        json("{\"prompts\": [\"a\", ", 400, "/prompts/1"),
        json("{\"prompts\": [\"a", 400, "/prompts/0"),
        json("{\"prompts\": [\"a\"],}", 400, ""),
        json("{\"prompts\": [\"a\",]}", 400, "/prompts/1"),
        json("{\"prompts\": [\"a\" \"b\"]}", 400, ""),
        json("{\"prompts\": [\"a\"]} x", 400, ""),
        json("{\"prompts\": [\"a\"]}{\"prompts\": [\"a\"]}", 400, ""),
        json("{'prompts': ['a']}", 400, ""),
        json("{\"prompts\": [NaN]}", 400, "/prompts/0"),
        json("{\"prompts\": [\"a\"], \"max_tokens\": 01}", 400, "/max_tokens"),
        json("{\"prompts\": [\"a\"], \"max_tokens\": +1}", 400, "/max_tokens"),
        json("{\"prompts\": [\"a\"], \"max_tokens\": .5}", 400, "/max_tokens"),
        json("{\"prompts\": [\"a\nb\"]}", 400, "/prompts/0"),
        json("{\"prompts\": [\"\\x41\"]}", 400, "/prompts/0"),
        json("{\"prompts\": [\"\\u12g4\"]}", 400, "/prompts/0"),
        json(b"{\"prompts\": [\"\xff\"]}".to_vec(), 400, "/prompts/0"),
        json(b"{\"prompts\": [\"\xc3\x28\"]}".to_vec(), 400, "/prompts/0"),
        json(b"{\"prompts\": [\"\xed\xa0\x80\"]}".to_vec(), 400, "/prompts/0"),
        json(b"{\"\xff\": 1, \"prompts\": [\"a\"]}".to_vec(), 400, ""),
        json(b"{\"model\": \"\xff\", \"prompts\": [\"a\"]}".to_vec(), 400, "/model"),
        json(b"\xff\xfe{\x00}\x00".to_vec(), 400, ""),
        json(b"{\"prompts\": [\"nul \x00 raw\"]}".to_vec(), 400, "/prompts/0"),
        json(b"\x00".to_vec(), 400, ""),
        json(format!("{{\"prompts\": [{}]}}", deep("[", "]", 127)), 400, "/prompts/0"),
        json(
            format!("{{\"prompts\": [{{\"messages\": [], \"params\": {{\"x\": {}}}}}]}}", deep("{\"a\":", "}", 125)),
            400,
            "/prompts/0",
        ),
        json(format!("{{\"params\": {}, \"prompts\": [\"a\"]}}", deep("[", "]", 128)), 400, "/params"),
        json("[".repeat(100_000), 400, ""),
        json(format!("{{\"prompts\": [{}", "[".repeat(100_000)), 400, "/prompts/0"),
        json(format!("{{\"x\":{}", "{\"a\":".repeat(100_000)), 400, "/x"),
        json("{\"prompts\": [\"a\"], \"prompts\": [\"b\"]}", 400, ""),
    ])
    .await;
}

#[tokio::test]
async fn json_that_is_no_batch_is_a_422() {
    check(vec![
        json("[]", 422, "whole"),
        json("[\"a\"]", 422, "whole"),
        json("\"a\"", 422, "whole"),
        json("1", 422, "whole"),
        json("null", 422, "whole"),
        json("true", 422, "whole"),
        json("{}", 422, "/prompts"),
        json("{\"model\": \"claude-haiku-4-5\"}", 422, "/prompts"),
        json("{\"prompts\": []}", 422, "/prompts"),
        json("{\"prompts\": {}}", 422, "/prompts"),
        json("{\"prompts\": null}", 422, "/prompts"),
        json("{\"prompts\": \"a\"}", 422, "/prompts"),
        json("{\"batch\": {\"model\": \"claude-haiku-4-5\", \"max_tokens\": 1}, \"prompts\": [\"a\"]}", 422, "/batch"),
    ])
    .await;
}

#[tokio::test]
async fn broken_lines_are_named_by_their_number() {
    let header = "{\"batch\": {\"model\": \"claude-haiku-4-5\", \"max_tokens\": 5}}\n";
    let after = |lines: &str| format!("{header}{lines}");
    let bytes = |lines: &[u8]| [header.as_bytes(), lines].concat();
    check(vec![
        ndjson("", 422, "1 /prompts"),
        ndjson("\n\n", 422, "3 /prompts"),
        ndjson(header, 422, "2 /prompts"),
        ndjson(after("\"a\"\n{\n"), 400, "3"),
        ndjson(after("\"a\"\n\n\r\n{\"messages\n"), 400, "5"),
        ndjson(after("\"a\" \"b\"\n"), 400, "2"),
        ndjson(after("\"a\"\nnot json\n\"b\"\n"), 400, "3"),
        ndjson(after("\"a\"\n\"b"), 400, "3"),
        ndjson(after("\"a\"\n{\"messages\": ["), 400, "3"),
        ndjson(after("[\"a\",\n\"b\"]\n"), 400, "2"),
        ndjson(bytes(b"\"a\"\n\"\xff\"\n"), 400, "3"),
        ndjson(bytes(b"\"a\"\n\"nul \x00\"\n"), 400, "3"),
        ndjson(bytes(b"\"a\"\n\x00\n"), 400, "3"),
        ndjson(after(&format!("\"a\"\n{}\n", "[".repeat(129))), 400, "3"),
        ndjson(after(&format!("\"a\"\n{}1{}\n", "[".repeat(129), "]".repeat(129))), 400, "3"),
        ndjson("{\"batch\": {\"model\": }}\n\"a\"\n", 400, "1"),
        ndjson(format!("\"a\"\n{header}"), 422, "2 /prompts/1/batch"),
        ndjson(after(header), 422, "2 /prompts/0/batch"),
        ndjson("{\"batch\": 5}\n\"a\"\n", 422, "1 /prompts/0/batch"),
        ndjson(
            "{\"batch\": {\"model\": \"claude-haiku-4-5\", \"max_tokens\": 5, \"prompts\": []}}\n\"a\"\n",
            422,
            "1 /prompts",
        ),
        ndjson("{\"batch\": {\"modle\": \"claude-haiku-4-5\", \"max_tokens\": 5}}\n\"a\"\n", 422, "1 /modle"),
        ndjson(after("\n\n5\n"), 422, "4 /prompts/0"),
        ndjson(after("\"a\"\n{\"mesages\": []}\n"), 422, "3 /prompts/1/mesages"),
        ndjson("\"a\"\n", 422, "1 /prompts/0/model"),
    ])
    .await;
}
