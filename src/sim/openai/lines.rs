//! Reading a batch's input file: every rule of contract 2.4, found after the create has been answered.
//!
//! Runs on a thread, holds one line at a time, and keeps of each good line only its place and its answer's facts.

use std::{
    collections::HashSet,
    fs::File,
    io::{self, BufRead, BufReader},
    path::Path,
};

use serde_json::{Value, json};

use super::endpoint::Endpoint;
use crate::sim::{
    answers::input_items,
    batch::{Requests, Span},
    faults::glob,
    json::truthy,
    settings::{BlankLines, OpenAi, Own},
};

/// What reading the input file came to.
pub(crate) struct Indexed {
    pub(crate) requests: Requests,
    /// As in `errors.data`; with any, the whole batch fails.
    pub(crate) errors: Vec<Value>,
    pub(crate) model: Option<String>,
    /// When the reading was done.
    pub(crate) at: f64,
}

/// What is wrong with one line.
#[derive(Debug, PartialEq, Eq)]
struct Flaw {
    code: &'static str,
    message: String,
    param: Option<String>,
}

fn flaw(code: &'static str, message: impl Into<String>, param: &str) -> Flaw {
    Flaw { code, message: message.into(), param: Some(param.to_owned()).filter(|param| !param.is_empty()) }
}

pub(crate) fn read(
    path: &Path,
    endpoint: Endpoint,
    own: &Own<OpenAi>,
) -> io::Result<(Requests, Vec<Value>, Option<String>)> {
    let mut reader = Reader { endpoint, own, seen: HashSet::new(), model: None };
    let mut requests = Requests::new(path.to_owned());
    let mut errors = Vec::new();
    let (mut offset, mut lines, mut inputs) = (0, 0, 0);
    let mut file = BufReader::with_capacity(1 << 18, File::open(path)?);
    let mut raw = Vec::new();
    while errors.len() < own.special.max_validation_errors {
        raw.clear();
        let length = file.read_until(b'\n', &mut raw)?;
        if length == 0 {
            break;
        }
        lines += 1;
        let span = Span { offset, length };
        offset += length as u64;
        if own.special.blank_lines == BlankLines::Ignore && raw.trim_ascii().is_empty() {
            continue;
        }
        let line = serde_json::from_slice(&raw).unwrap_or_default();
        match reader.check(&line) {
            Err(Flaw { code, message, param }) => {
                errors.push(json!({"code": code, "message": message, "param": param, "line": lines}));
            }
            Ok(custom_id) if errors.is_empty() => {
                let body = &line["body"];
                requests.add(custom_id, &span, &endpoint.reply(body, &own.common));
                inputs += if endpoint == Endpoint::Embeddings { input_items(body).len() } else { 0 };
            }
            Ok(_) => {}
        }
    }
    let whole = if lines == 0 {
        Some(("empty_file", "The batch input file is empty."))
    } else if lines > own.special.max_requests {
        Some(("too_many_tasks", "The batch has too many requests."))
    } else if inputs > own.special.max_embedding_inputs {
        Some(("too_many_tasks", "The batch has too many embedding inputs."))
    } else {
        None
    };
    if let Some((code, message)) = whole {
        errors = vec![json!({"code": code, "message": message, "param": null, "line": null})];
    }
    Ok((requests, errors, reader.model))
}

/// Checks lines one after the other; what a line may say depends on those before it.
struct Reader<'a> {
    endpoint: Endpoint,
    own: &'a Own<OpenAi>,
    seen: HashSet<String>,
    model: Option<String>,
}

impl Reader<'_> {
    /// The `custom_id` of a good line, or the first thing that is wrong with it.
    fn check<'l>(&mut self, line: &'l Value) -> Result<&'l str, Flaw> {
        if !line.is_object() {
            return Err(flaw("invalid_json_line", "This line is not parseable as valid JSON.", ""));
        }
        for name in ["custom_id", "method", "url", "body"] {
            if line[name].is_null() {
                return Err(flaw("missing_required_parameter", format!("Missing required parameter: '{name}'."), name));
            }
        }
        let custom_id = self.check_custom_id(&line["custom_id"])?;
        if line["method"] != "POST" {
            return Err(flaw("invalid_method", "Invalid method: a batch takes only 'POST'.", "method"));
        }
        if line["url"] != self.endpoint.path() {
            let message = "The URL provided for this request does not match the batch endpoint.";
            return Err(flaw("invalid_url", message, "url"));
        }
        self.check_body(&line["body"])?;
        Ok(custom_id)
    }

    fn check_custom_id<'l>(&mut self, given: &'l Value) -> Result<&'l str, Flaw> {
        let Some(custom_id) = given.as_str().filter(|given| !given.is_empty()) else {
            let message = "Invalid type for 'custom_id': expected a string that is not empty.";
            return Err(flaw("invalid_type", message, "custom_id"));
        };
        if let Some(most) = self.own.special.max_custom_id.filter(|most| custom_id.chars().count() > *most) {
            let message = format!("Invalid 'custom_id': string too long. Expected at most {most} characters.");
            return Err(flaw("string_above_max_length", message, "custom_id"));
        }
        if !self.seen.insert(custom_id.to_owned()) {
            let message = format!(
                "The custom_id '{custom_id}' for this request is a duplicate of another request. \
                 The custom_id parameter must be unique for each request in a batch."
            );
            return Err(flaw("duplicate_custom_id", message, "custom_id"));
        }
        Ok(custom_id)
    }

    fn check_body(&mut self, body: &Value) -> Result<(), Flaw> {
        if !body.is_object() {
            return Err(flaw("invalid_type", "Invalid type for 'body': expected an object.", "body"));
        }
        let Some(model) = body["model"].as_str().filter(|model| !model.is_empty()) else {
            return Err(flaw("invalid_request", "Model parameter is required.", "body.model"));
        };
        if truthy(&body["stream"]) {
            let message = format!("{}: Streaming is not supported in the Batch API.", self.endpoint.product());
            return Err(flaw("streaming_unsupported", message, "body.stream"));
        }
        if self.own.common.unknown_models.iter().any(|pattern| glob(pattern, model)) {
            let message = format!("The provided model '{model}' is not supported by the Batch API.");
            return Err(flaw("model_not_found", message, "body.model"));
        }
        if self.model.get_or_insert_with(|| model.to_owned()) != model {
            let message = format!(
                "The model '{model}' for this request does not match the rest of the batch. \
                 Each batch must contain requests for a single model."
            );
            return Err(flaw("mismatched_model", message, "body.model"));
        }
        let member = self.endpoint.member();
        if body.get(member).is_none() {
            let (first, rest) = member.split_at(1);
            let message = format!("{}{rest} parameter is required.", first.to_uppercase());
            return Err(flaw("invalid_request", message, &format!("body.{member}")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{settings::Settings, spool::Spool};

    const GOOD: &str =
        r#"{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[]}}"#;

    /// (code, line, param) of every error.
    fn errors(text: &str) -> Vec<(String, Option<u64>, Option<String>)> {
        let spool = Spool::create(Path::new("/tmp")).expect("a temporary directory");
        let path = spool.fresh();
        std::fs::write(&path, text).expect("room on the disk");
        let settings = Settings::default();
        let own = Own { common: settings.common, special: OpenAi { max_requests: 3, ..settings.openai } };
        let (_, errors, _) = read(&path, Endpoint::ChatCompletions, &own).expect("the file is there");
        let text = |value: &Value| value.as_str().map(str::to_owned);
        errors.iter().map(|e| (text(&e["code"]).unwrap_or_default(), e["line"].as_u64(), text(&e["param"]))).collect()
    }

    #[test]
    fn every_line_error_of_the_contract() {
        let check = |from: &str, to: &str, code: &str, param: Option<&str>| {
            let bad = GOOD.replacen("\"a\"", "\"b\"", 1).replacen(from, to, 1);
            let expected = vec![(code.to_owned(), Some(2), param.map(str::to_owned))];
            assert_eq!(errors(&format!("{GOOD}\n{bad}\n")), expected, "{bad}");
        };
        check("{", "", "invalid_json_line", None);
        check("\"custom_id\":\"b\",", "", "missing_required_parameter", Some("custom_id"));
        check("\"b\"", "\"a\"", "duplicate_custom_id", Some("custom_id"));
        check("\"b\"", "7", "invalid_type", Some("custom_id"));
        check("POST", "GET", "invalid_method", Some("method"));
        check("/v1/chat", "/chat", "invalid_url", Some("url"));
        check("\"model\":\"m\",", "", "invalid_request", Some("body.model"));
        check("\"m\"", "\"n\"", "mismatched_model", Some("body.model"));
        check("\"m\"", "\"unknown-1\"", "model_not_found", Some("body.model"));
        check("\"model\"", "\"stream\":true,\"model\"", "streaming_unsupported", Some("body.stream"));
        check("\"messages\":[]", "\"input\":[]", "invalid_request", Some("body.messages"));
    }

    #[test]
    fn files_fail_as_a_whole() {
        assert_eq!(errors(GOOD), []);
        assert_eq!(errors("")[0].0, "empty_file");
        let four: Vec<_> =
            ["a", "b", "c", "d"].iter().map(|id| GOOD.replacen("\"a\"", &format!("\"{id}\""), 1)).collect();
        assert_eq!(errors(&four.join("\n")), [("too_many_tasks".to_owned(), None, None)]);
        assert_eq!(errors(&format!("\u{feff}{GOOD}"))[0].0, "invalid_json_line");
        assert_eq!(errors(&format!("{GOOD}\n\n"))[0].0, "invalid_json_line");
    }
}
