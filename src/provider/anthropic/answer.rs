//! What we read in an Anthropic message, whichever door it came through: batch or online. Pure.

use crate::{
    domain::outcome::{Finish, Reading, Usage},
    provider::json::Members,
};

/// The reading of a message; none if it is no message: no JSON object, or no list of blocks in it.
pub fn read_answer(body: &str) -> Option<Reading> {
    let message = Members::read(body)?;
    let blocks = message.list("content")?;
    let stop_reason = message.word("stop_reason");
    let finish = stop_reason.as_deref().map(finish);
    let blocks: Vec<Members<'_>> = blocks.iter().filter_map(|block| Members::read(block.get())).collect();
    let completion = text(&blocks).filter(|_| finish != Some(Finish::Refusal));
    let usage = message.object("usage").map(|usage| read_usage(&usage));
    Some(Reading { model: message.word("model"), completion, finish, stop_reason, usage })
}

/// The text blocks joined with nothing between. No blocks at all are an empty text; blocks of other kinds alone are none.
fn text(blocks: &[Members<'_>]) -> Option<String> {
    let kind = |block: &Members<'_>| block.word("type");
    let texts: Vec<String> = blocks
        .iter()
        .filter(|block| kind(block).as_deref() == Some("text"))
        .filter_map(|block| block.text("text"))
        .collect();
    let text = texts.concat();
    let calls = blocks.iter().any(|block| kind(block).as_deref() == Some("tool_use"));
    let has_text = if calls { !text.is_empty() } else { !texts.is_empty() || blocks.is_empty() };
    has_text.then_some(text)
}

fn finish(reason: &str) -> Finish {
    match reason {
        "end_turn" | "stop_sequence" => Finish::Stop,
        "max_tokens" | "model_context_window_exceeded" => Finish::Length,
        "refusal" => Finish::Refusal,
        "tool_use" => Finish::ToolUse,
        _ => Finish::Other,
    }
}

/// Anthropic counts cache reads and cache writes apart from `input_tokens`; together they are what was read.
fn read_usage(usage: &Members<'_>) -> Usage {
    let count = |name| usage.count(name).unwrap_or(0);
    let cached = count("cache_read_input_tokens");
    Usage {
        input_tokens: count("input_tokens").saturating_add(count("cache_creation_input_tokens")).saturating_add(cached),
        cached_input_tokens: cached,
        output_tokens: count("output_tokens"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content: &str, reason: &str) -> (Option<String>, Option<Finish>) {
        let reading = read_answer(&format!(r#"{{"model":"m","content":{content},"stop_reason":"{reason}"}}"#)).unwrap();
        assert_eq!(
            (reading.model.as_deref(), reading.stop_reason.as_deref(), reading.usage),
            (Some("m"), Some(reason), None)
        );
        (reading.completion, reading.finish)
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn text_blocks_are_joined_and_the_reason_translated() {
        let two = r#"[{"type":"thinking","thinking":"t"},{"type":"text","text":"a"},{"type":"text","text":"b"}]"#;
        assert_eq!(read(two, "end_turn"), (some("ab"), Some(Finish::Stop)));
        assert_eq!(read("[]", "stop_sequence"), (some(""), Some(Finish::Stop)));
        assert_eq!(read(r#"[{"type":"text","text":""}]"#, "max_tokens"), (some(""), Some(Finish::Length)));
        assert_eq!(
            read(r#"[{"type":"text","text":"x"}]"#, "model_context_window_exceeded"),
            (some("x"), Some(Finish::Length))
        );
        assert_eq!(read(r#"[{"type":"tool_use","input":{}}]"#, "tool_use"), (None, Some(Finish::ToolUse)));
        assert_eq!(
            read(r#"[{"type":"text","text":"x"},{"type":"tool_use"}]"#, "tool_use"),
            (some("x"), Some(Finish::ToolUse))
        );
        assert_eq!(read(r#"[{"type":"thinking"}]"#, "pause_turn"), (None, Some(Finish::Other)));
        assert_eq!(read(r#"[{"type":"text","text":"\udc00"}]"#, "end_turn"), (some("\u{FFFD}"), Some(Finish::Stop)));
    }

    #[test]
    fn a_refusals_text_is_no_completion() {
        assert_eq!(read(r#"[{"type":"text","text":"I can't"}]"#, "refusal"), (None, Some(Finish::Refusal)));
    }

    #[test]
    fn usage_adds_what_anthropic_counts_apart() {
        let body = r#"{"content":[],"usage":{"input_tokens":1,"cache_creation_input_tokens":20,"cache_read_input_tokens":300,"output_tokens":4}}"#;
        assert_eq!(
            read_answer(body).unwrap().usage,
            Some(Usage { input_tokens: 321, cached_input_tokens: 300, output_tokens: 4 })
        );
        let body = r#"{"content":[],"usage":{"input_tokens":1,"cache_creation_input_tokens":null,"output_tokens":4}}"#;
        assert_eq!(
            read_answer(body).unwrap().usage,
            Some(Usage { input_tokens: 1, cached_input_tokens: 0, output_tokens: 4 })
        );
    }

    #[test]
    fn what_is_no_message_is_none() {
        for body in ["", "null", "[]", "{}", r#"{"content":null}"#, r#"{"content":"x"}"#] {
            assert_eq!(read_answer(body), None, "{body}");
        }
    }
}
