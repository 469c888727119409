//! Answers with choices: chat, and the plain completions before it. The first choice is read.

use super::usage_of;
use crate::{
    domain::outcome::{Failure, Finish, Reading},
    provider::{
        json::{self, Members},
        verdict,
    },
};
use serde_json::value::RawValue;

pub(super) fn read_chat(body: &Members<'_>) -> Result<Reading, Failure> {
    let choice = first(body)?;
    let message = choice.as_ref().and_then(|choice| choice.object("message"));
    let refused = message.as_ref().is_some_and(refuses);
    Ok(reading(body, choice.as_ref(), refused, message.as_ref().and_then(text)))
}

pub(super) fn read_completion(body: &Members<'_>) -> Result<Reading, Failure> {
    let choice = first(body)?;
    let text = choice.as_ref().and_then(|choice| choice.text("text"));
    Ok(reading(body, choice.as_ref(), false, text))
}

/// The first choice; none if it is odd, for an odd answer is still an answer.
fn first<'a>(body: &Members<'a>) -> Result<Option<Members<'a>>, Failure> {
    let choices = body.list("choices").unwrap_or_default();
    let first = choices.first().ok_or_else(|| verdict::empty("the provider's answer holds no choice"))?;
    Ok(Members::read(first.get()))
}

fn reading(body: &Members<'_>, choice: Option<&Members<'_>>, refused: bool, text: Option<String>) -> Reading {
    let stop_reason = choice.and_then(|choice| choice.word("finish_reason"));
    let finish = if refused { Some(Finish::Refusal) } else { stop_reason.as_deref().map(finish) };
    Reading {
        model: body.word("model"),
        completion: text.filter(|_| finish != Some(Finish::Refusal)),
        finish,
        stop_reason,
        usage: body.object("usage").map(|usage| usage_of(&usage, &["prompt", "completion"])),
    }
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

#[cfg(test)]
mod tests {
    use super::super::read_answer;
    use super::*;
    use crate::domain::{outcome::Usage, prompt::Endpoint};

    fn read(message: &str, reason: &str) -> (Option<String>, Option<Finish>) {
        let body =
            format!(r#"{{"model":"m","choices":[{{"message":{message},"finish_reason":"{reason}"}}],"usage":null}}"#);
        let reading = read_answer(Endpoint::ChatCompletions, &body).unwrap();
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
    fn a_plain_completion_is_its_text() {
        let read = |choice: &str| {
            let reading =
                read_answer(Endpoint::Completions, &format!(r#"{{"choices":[{choice},{{"text":"second"}}]}}"#));
            let reading = reading.unwrap();
            (reading.completion, reading.finish)
        };
        assert_eq!(read(r#"{"text":" world","finish_reason":"stop"}"#), (some(" world"), Some(Finish::Stop)));
        assert_eq!(read(r#"{"text":"","finish_reason":"length"}"#), (some(""), Some(Finish::Length)));
        assert_eq!(read(r#"{"text":"half","finish_reason":"content_filter"}"#), (None, Some(Finish::Refusal)));
        assert_eq!(read(r#"{"text":"x","finish_reason":null}"#), (some("x"), None));
    }

    #[test]
    fn an_odd_answer_is_still_an_answer() {
        for endpoint in [Endpoint::ChatCompletions, Endpoint::Completions] {
            assert_eq!(read_answer(endpoint, r#"{"choices":[{}]}"#), Ok(Reading::default()));
            assert_eq!(read_answer(endpoint, r#"{"choices":[7]}"#), Ok(Reading::default()));
        }
    }

    #[test]
    fn usage_counts_what_is_there() {
        let usage = |text: &str| {
            let body = format!(r#"{{"choices":[1],"usage":{text}}}"#);
            read_answer(Endpoint::ChatCompletions, &body).unwrap().usage.unwrap()
        };
        let full = r#"{"prompt_tokens":24,"completion_tokens":15,"prompt_tokens_details":{"cached_tokens":20}}"#;
        assert_eq!(usage(full), Usage { input_tokens: 24, cached_input_tokens: 20, output_tokens: 15 });
        assert_eq!(
            usage(r#"{"prompt_tokens":3,"prompt_tokens_details":null}"#),
            Usage { input_tokens: 3, ..Usage::default() }
        );
    }
}
