//! What we read in the body of an OpenAI answer, whichever door it came through: batch or online. Pure.

use crate::{
    domain::outcome::{Finish, Reading, Usage},
    provider::json::{self, Members},
};
use serde_json::value::RawValue;

/// The reading of a chat completion; none if it is no answer: no JSON object, or no choice in it.
pub fn read_answer(body: &str) -> Option<Reading> {
    let body = Members::read(body)?;
    let choices = body.list("choices")?;
    let choice = Members::read(choices.first()?.get());
    let message = choice.as_ref().and_then(|choice| choice.object("message"));
    let stop_reason = choice.as_ref().and_then(|choice| choice.word("finish_reason"));
    let refused = message.as_ref().is_some_and(refuses);
    let finish = if refused { Some(Finish::Refusal) } else { stop_reason.as_deref().map(finish) };
    let completion = message.as_ref().and_then(text).filter(|_| finish != Some(Finish::Refusal));
    Some(Reading {
        model: body.word("model"),
        completion,
        finish,
        stop_reason,
        usage: body.object("usage").map(|usage| read_usage(&usage)),
    })
}

fn finish(reason: &str) -> Finish {
    match reason {
        "stop" => Finish::Stop,
        "length" => Finish::Length,
        "content_filter" => Finish::Refusal,
        "tool_calls" | "function_call" => Finish::ToolUse,
        _ => Finish::Other,
    }
}

/// A refusal part, of the message or in its content, whatever the reason says.
fn refuses(message: &Members<'_>) -> bool {
    message.word("refusal").is_some()
        || parts(message).iter().any(|part| part.word("type").as_deref() == Some("refusal"))
}

/// `content` as one text: a string, or the text parts joined with nothing between. Tool calls without a word have none.
fn text(message: &Members<'_>) -> Option<String> {
    let content = message.get("content")?;
    let text = json::text(content).or_else(|| {
        let texts: Vec<String> = parts(message).iter().filter_map(|part| part.text("text")).collect();
        (!texts.is_empty()).then(|| texts.concat())
    })?;
    let calls =
        message.list("tool_calls").is_some_and(|calls| !calls.is_empty()) || message.get("function_call").is_some();
    (!calls || !text.is_empty()).then_some(text)
}

fn parts<'a>(message: &Members<'a>) -> Vec<Members<'a>> {
    let parts: Vec<&RawValue> = message.list("content").unwrap_or_default();
    parts.iter().filter_map(|part| Members::read(part.get())).collect()
}

/// `prompt_tokens` and `completion_tokens` already include what was cached and what was reasoned.
fn read_usage(usage: &Members<'_>) -> Usage {
    let details = usage.object("prompt_tokens_details");
    Usage {
        input_tokens: usage.count("prompt_tokens").unwrap_or(0),
        cached_input_tokens: details.and_then(|details| details.count("cached_tokens")).unwrap_or(0),
        output_tokens: usage.count("completion_tokens").unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(message: &str, reason: &str) -> (Option<String>, Option<Finish>) {
        let body =
            format!(r#"{{"model":"m","choices":[{{"message":{message},"finish_reason":"{reason}"}}],"usage":null}}"#);
        let reading = read_answer(&body).unwrap();
        assert_eq!((reading.stop_reason.as_deref(), reading.usage), (Some(reason), None));
        (reading.completion, reading.finish)
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn text_and_finish_follow_the_first_choice() {
        assert_eq!(read(r#"{"content":"Hi"}"#, "stop"), (some("Hi"), Some(Finish::Stop)));
        assert_eq!(read(r#"{"content":""}"#, "stop"), (some(""), Some(Finish::Stop)));
        assert_eq!(read(r#"{"content":"cut"}"#, "length"), (some("cut"), Some(Finish::Length)));
        assert_eq!(
            read(r#"{"content":[{"type":"text","text":"a"},{"type":"x"},{"type":"text","text":"b"}]}"#, "stop"),
            (some("ab"), Some(Finish::Stop))
        );
        assert_eq!(read(r#"{"content":null,"tool_calls":[{}]}"#, "tool_calls"), (None, Some(Finish::ToolUse)));
        assert_eq!(read(r#"{"content":"","tool_calls":[{}]}"#, "tool_calls"), (None, Some(Finish::ToolUse)));
        assert_eq!(read(r#"{"content":"see","tool_calls":[{}]}"#, "tool_calls"), (some("see"), Some(Finish::ToolUse)));
        assert_eq!(read(r#"{"content":"x"}"#, "new_word"), (some("x"), Some(Finish::Other)));
        assert_eq!(read(r#"{"content":"a\ud83d"}"#, "stop"), (some("a\u{FFFD}"), Some(Finish::Stop)));
    }

    #[test]
    fn a_refusal_beats_the_reason_and_its_text_is_no_completion() {
        assert_eq!(read(r#"{"content":null,"refusal":"No."}"#, "stop"), (None, Some(Finish::Refusal)));
        assert_eq!(read(r#"{"content":[{"type":"refusal","refusal":"No."}]}"#, "stop"), (None, Some(Finish::Refusal)));
        assert_eq!(read(r#"{"content":"half"}"#, "content_filter"), (None, Some(Finish::Refusal)));
    }

    #[test]
    fn an_odd_answer_is_still_an_answer_and_none_is_none() {
        assert_eq!(read_answer(r#"{"choices":[{}]}"#), Some(Reading::default()));
        assert_eq!(read_answer(r#"{"choices":[7]}"#), Some(Reading::default()));
        for body in ["", "null", "[]", "{}", r#"{"choices":[]}"#, r#"{"choices":null}"#] {
            assert_eq!(read_answer(body), None, "{body}");
        }
    }

    #[test]
    fn usage_counts_what_is_there() {
        let usage = |text: &str| read_answer(&format!(r#"{{"choices":[1],"usage":{text}}}"#)).unwrap().usage.unwrap();
        let full = r#"{"prompt_tokens":24,"completion_tokens":15,"prompt_tokens_details":{"cached_tokens":20}}"#;
        assert_eq!(usage(full), Usage { input_tokens: 24, cached_input_tokens: 20, output_tokens: 15 });
        assert_eq!(
            usage(r#"{"prompt_tokens":3,"prompt_tokens_details":null}"#),
            Usage { input_tokens: 3, ..Usage::default() }
        );
    }
}
