//! Answers of the Responses API: a status and a list of output items.

use super::usage_of;
use crate::{
    domain::outcome::{Failure, Finish, Reading},
    provider::{
        faults::Envelope,
        json::{self, Members},
        verdict,
    },
};

/// Calls that wait for the client; the others the provider has made itself.
const CLIENTS_CALLS: [&str; 7] = [
    "function_call",
    "custom_tool_call",
    "computer_call",
    "local_shell_call",
    "shell_call",
    "apply_patch_call",
    "mcp_approval_request",
];

/// What the output items say together.
#[derive(Default)]
struct Output {
    /// Anything but reasoning: something was answered.
    answered: bool,
    /// The text parts of all messages, joined with nothing between; none where there is no message.
    text: Option<String>,
    refused: bool,
    calls: bool,
}

pub(super) fn read(body: &Members<'_>) -> Result<Reading, Failure> {
    let output = Output::of(body);
    // Servers that only resemble OpenAI may leave the status out.
    let status = body.word("status").unwrap_or_else(|| "completed".to_owned());
    let (finish, stop_reason) = match status.as_str() {
        "completed" if output.answered => {
            (if output.calls { Finish::ToolUse } else { Finish::Stop }, body.word("status"))
        }
        // Cut off before a word is cut off all the same.
        "incomplete" => {
            let reason = body.object("incomplete_details").and_then(|details| details.word("reason"));
            (reason.as_deref().map_or(Finish::Other, cut), reason.or(Some(status)))
        }
        _ => return Err(no_answer(body, &status)),
    };
    let finish = if output.refused { Finish::Refusal } else { finish };
    Ok(Reading {
        model: body.word("model"),
        completion: output.text.filter(|text| finish != Finish::Refusal && !(output.calls && text.is_empty())),
        finish: Some(finish),
        stop_reason,
        usage: body.object("usage").map(|usage| usage_of(&usage, &["input", "output"])),
    })
}

fn cut(reason: &str) -> Finish {
    match reason {
        "max_output_tokens" => Finish::Length,
        "content_filter" => Finish::Refusal,
        _ => Finish::Other,
    }
}

impl Output {
    fn of(body: &Members<'_>) -> Output {
        let mut output = Output::default();
        let items = body.list("output").unwrap_or_default();
        for item in items.iter().filter_map(|item| Members::read(item.get())) {
            let kind = item.word("type").unwrap_or_default();
            output.answered |= kind != "reasoning";
            output.calls |= CLIENTS_CALLS.contains(&kind.as_str());
            if kind == "message" {
                output.take_message(&item);
            }
        }
        output
    }

    fn take_message(&mut self, message: &Members<'_>) {
        let text = self.text.get_or_insert_default();
        let parts = message.list("content").unwrap_or_default();
        for part in parts.iter().filter_map(|part| Members::read(part.get())) {
            match part.word("type").as_deref() {
                Some("output_text") => text.push_str(&part.text("text").unwrap_or_default()),
                Some("refusal") => self.refused = true,
                _ => {}
            }
        }
    }
}

/// `failed`, `cancelled`, not even begun, or completed without a word.
fn no_answer(body: &Members<'_>, status: &str) -> Failure {
    let error = body.object("error").map(|error| Envelope::of(&error)).unwrap_or_default();
    let status = json::shortened(status, 64);
    let message = match error.message.as_deref() {
        Some(message) => format!("the provider's response is {status}: {}", json::shortened(message, 2000)),
        None => format!("the provider's response is {status} and holds no output"),
    };
    Failure { provider_code: error.word().map(str::to_owned), ..verdict::empty(&message) }
}

#[cfg(test)]
mod tests {
    use super::super::read_answer;
    use super::*;
    use crate::domain::{
        outcome::{FailureCode, Usage},
        prompt::Endpoint,
    };

    const REASONING: &str = r#"{"type":"reasoning","summary":[]}"#;
    const CALL: &str = r#"{"type":"function_call","name":"f","arguments":"{}"}"#;

    fn message(parts: &str) -> String {
        format!(r#"{{"type":"message","content":[{parts}]}}"#)
    }

    fn text(text: &str) -> String {
        format!(r#"{{"type":"output_text","text":"{text}"}}"#)
    }

    fn check(rest: &str, items: &[&str], expect: (Option<&str>, Finish, Option<&str>)) {
        let body = format!(r#"{{"output":[{}]{rest}}}"#, items.join(","));
        let reading = read_answer(Endpoint::Responses, &body).expect(&body);
        let found = (reading.completion.as_deref(), reading.finish.unwrap(), reading.stop_reason.as_deref());
        assert_eq!(found, expect, "{body}");
    }

    const COMPLETED: &str = r#","status":"completed","incomplete_details":null,"error":null"#;

    fn incomplete(reason: &str) -> String {
        format!(r#","status":"incomplete","incomplete_details":{{"reason":"{reason}"}}"#)
    }

    #[test]
    fn the_texts_of_all_messages_are_one() {
        let (two, one) = (message(&format!("{},{}", text("a"), text("b"))), message(&text("c")));
        check(COMPLETED, &[REASONING, &two, REASONING, &one], (Some("abc"), Finish::Stop, Some("completed")));
        check(COMPLETED, &[&message("")], (Some(""), Finish::Stop, Some("completed")));
        check(COMPLETED, &[&message(&text("a\\ud83d"))], (Some("a\u{FFFD}"), Finish::Stop, Some("completed")));
        check("", &[&one], (Some("c"), Finish::Stop, None));
    }

    #[test]
    fn calls_that_wait_for_the_client_are_tool_use() {
        let said = message(&text("see"));
        check(COMPLETED, &[REASONING, CALL], (None, Finish::ToolUse, Some("completed")));
        check(COMPLETED, &[&said, CALL, CALL], (Some("see"), Finish::ToolUse, Some("completed")));
        check(COMPLETED, &[&message(""), CALL], (None, Finish::ToolUse, Some("completed")));
        check(COMPLETED, &[r#"{"type":"web_search_call"}"#, &said], (Some("see"), Finish::Stop, Some("completed")));
        check(COMPLETED, &[r#"{"type":"image_generation_call"}"#], (None, Finish::Stop, Some("completed")));
    }

    #[test]
    fn a_refusal_part_beats_the_status() {
        let refusal = message(&format!(r#"{},{{"type":"refusal","refusal":"No."}}"#, text("half")));
        check(COMPLETED, &[&refusal], (None, Finish::Refusal, Some("completed")));
        check(&incomplete("max_output_tokens"), &[&refusal], (None, Finish::Refusal, Some("max_output_tokens")));
    }

    #[test]
    fn what_was_cut_off_says_why() {
        let half = message(&text("half"));
        let cut = incomplete("max_output_tokens");
        check(&cut, &[&half], (Some("half"), Finish::Length, Some("max_output_tokens")));
        check(&cut, &[REASONING], (None, Finish::Length, Some("max_output_tokens")));
        check(&cut, &[], (None, Finish::Length, Some("max_output_tokens")));
        check(&incomplete("content_filter"), &[&half], (None, Finish::Refusal, Some("content_filter")));
        check(&incomplete("new_word"), &[&half], (Some("half"), Finish::Other, Some("new_word")));
        check(r#","status":"incomplete""#, &[&half], (Some("half"), Finish::Other, Some("incomplete")));
    }

    #[test]
    fn a_response_that_failed_is_no_answer_and_says_why() {
        let read = |rest: &str, item: &str| {
            let failure = read_answer(Endpoint::Responses, &format!(r#"{{"output":[{item}]{rest}}}"#)).unwrap_err();
            assert_eq!((failure.code, failure.retryable), (FailureCode::EmptyAnswer, false));
            (failure.message, failure.provider_code)
        };
        let failed = r#","status":"failed","error":{"code":"server_error","message":"The model broke."}"#;
        let told = ("the provider's response is failed: The model broke.".to_owned(), Some("server_error".to_owned()));
        assert_eq!(read(failed, ""), told);
        assert_eq!(read(failed, &message(&text("half"))), told);
        assert_eq!(read(COMPLETED, "").0, "the provider's response is completed and holds no output");
        for status in ["queued", "in_progress", "cancelled"] {
            read(&format!(r#","status":"{status}""#), &message(&text("x")));
        }
        read(COMPLETED, REASONING);
        read(COMPLETED, "7");
    }

    #[test]
    fn usage_is_input_and_output() {
        let body = r#"{"output":[{"type":"message","content":[]}],"usage":{"input_tokens":24,"output_tokens":15,"input_tokens_details":{"cached_tokens":20}}}"#;
        let usage = Usage { input_tokens: 24, cached_input_tokens: 20, output_tokens: 15 };
        assert_eq!(read_answer(Endpoint::Responses, body).unwrap().usage, Some(usage));
    }
}
