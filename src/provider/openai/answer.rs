//! What we read in the body of an OpenAI answer, whichever door it came through: batch or online. Pure.
//!
//! ```text
//! endpoint             an answer if it has                    text                    usage
//! chat, completions    a choice                               of the first choice     prompt, completion
//! responses            an item that is no reasoning,          output_text parts       input, output
//!                      or was cut off (`incomplete`)
//! embeddings           data                                   none, and no finish     prompt
//! moderations          results                                none, and no finish     none: they are free
//! ```

mod choices;
mod responses;

use crate::{
    domain::{
        outcome::{Failure, Reading, Usage},
        prompt::Endpoint,
    },
    provider::{json::Members, verdict},
};

/// The reading of an answer to a body of this endpoint. Otherwise why a 2xx is no answer: it was billed, so it is not
/// asked again.
pub fn read_answer(endpoint: Endpoint, body: &str) -> Result<Reading, Failure> {
    let Some(body) = Members::read(body) else { return Err(verdict::empty("the provider's answer is no JSON object")) };
    match endpoint {
        Endpoint::ChatCompletions => choices::read_chat(&body),
        Endpoint::Completions => choices::read_completion(&body),
        Endpoint::Responses => responses::read(&body),
        Endpoint::Embeddings => read_embeddings(&body),
        Endpoint::Moderations => read_moderations(&body),
        Endpoint::Messages => Err(verdict::empty("an account of this kind answers no messages")),
    }
}

fn read_embeddings(body: &Members<'_>) -> Result<Reading, Failure> {
    if !body.has_items("data") {
        return Err(verdict::empty("the provider's answer holds no embedding"));
    }
    let usage = body.object("usage").map(|usage| usage_of(&usage, &["prompt", "completion"]));
    Ok(Reading { model: body.word("model"), usage, ..Reading::default() })
}

fn read_moderations(body: &Members<'_>) -> Result<Reading, Failure> {
    if !body.has_items("results") {
        return Err(verdict::empty("the provider's answer holds no result"));
    }
    Ok(Reading { model: body.word("model"), ..Reading::default() })
}

/// Tokens under `{in}_tokens` and `{out}_tokens`, which already include what was cached and what was reasoned.
fn usage_of(usage: &Members<'_>, [read, written]: &[&str; 2]) -> Usage {
    let count = |name: &str| usage.count(&format!("{name}_tokens")).unwrap_or(0);
    let details = usage.object(&format!("{read}_tokens_details"));
    Usage {
        input_tokens: count(read),
        cached_input_tokens: details.and_then(|details| details.count("cached_tokens")).unwrap_or(0),
        output_tokens: count(written),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::outcome::FailureCode;

    #[test]
    fn vectors_have_no_text_and_no_finish() {
        for embedding in ["[0.0023,-0.0093]", r#""AACAPw==""#] {
            let body = format!(
                r#"{{"object":"list","data":[{{"index":0,"embedding":{embedding}}}],"model":"e","usage":{{"prompt_tokens":8,"total_tokens":8}}}}"#
            );
            let usage = Some(Usage { input_tokens: 8, ..Usage::default() });
            let expect = Reading { model: Some("e".into()), usage, ..Reading::default() };
            assert_eq!(read_answer(Endpoint::Embeddings, &body), Ok(expect));
        }
    }

    #[test]
    fn moderations_have_no_usage_either() {
        let body = r#"{"id":"modr-01","model":"omni","results":[{"flagged":false}],"usage":{"prompt_tokens":1}}"#;
        let expect = Reading { model: Some("omni".into()), ..Reading::default() };
        assert_eq!(read_answer(Endpoint::Moderations, body), Ok(expect));
    }

    #[test]
    fn what_is_no_answer_of_its_endpoint_is_a_failure_for_good() {
        let bodies = [
            "",
            "null",
            "[]",
            "7",
            "{}",
            r#"{"choices":[],"output":[],"data":[],"results":[]}"#,
            r#"{"choices":null,"output":null,"data":null,"results":null}"#,
            r#"{"choices":{},"output":{},"data":{},"results":{}}"#,
        ];
        for endpoint in Endpoint::ALL {
            for body in bodies {
                let failure = read_answer(endpoint, body).expect_err(body);
                assert_eq!((failure.code, failure.retryable), (FailureCode::EmptyAnswer, false), "{endpoint:?} {body}");
            }
        }
        let chat = r#"{"choices":[{"message":{"content":"x"}}]}"#;
        for endpoint in [Endpoint::Responses, Endpoint::Embeddings, Endpoint::Moderations] {
            assert!(read_answer(endpoint, chat).is_err(), "{endpoint:?}");
        }
    }
}
