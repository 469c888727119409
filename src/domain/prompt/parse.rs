//! From the bytes of one prompt to a [`Prompt`]: read the form, find the account, lay in, check.

use super::{ApiHeaders, Endpoint, Prompt, PromptText, forms, forms::Draft, lay, lay::Laid, validate};
use crate::domain::{
    batch::{NO_STREAM, Options},
    json,
    problem::{Problem, quote},
    reader::{ANTHROPIC_VERSIONS, HeaderFields, Reader},
    route::{Route, Routes},
};
use serde_json::Value;

pub(super) fn parse(text: &PromptText, options: &Options, routes: &Routes) -> Result<Prompt, Vec<Problem>> {
    let mut reader = Reader::new(text.pointer(), text.line);
    let prompt = match json::parse(&text.bytes) {
        Ok(value) => forms::draft(&mut reader, value).and_then(|draft| finish(&mut reader, draft, options, routes)),
        Err(fault) => {
            reader.note(&fault.pointer(), fault.message());
            None
        }
    };
    match prompt {
        Some(prompt) if reader.problems.is_empty() && !options.faulty => Ok(prompt),
        _ => Err(reader.problems),
    }
}

/// None where the way ends early: the reader, or the batch's own problems, know why.
fn finish(reader: &mut Reader, mut draft: Draft, options: &Options, routes: &Routes) -> Option<Prompt> {
    if let Some(messages) = &draft.messages {
        // Before they are laid in: then their numbers are still the author's.
        validate::messages(reader, "/messages", messages);
    }
    let (model, model_at) = model(reader, &draft, options)?;
    let route = match routes.find(&model) {
        Ok(route) => route,
        Err(message) => {
            reader.note(&model_at, message);
            return None;
        }
    };
    let endpoint = endpoint(reader, &draft, &model, route)?;
    if options.samples > 1 && !endpoint.has_samples() {
        let (samples, path) = (options.samples, endpoint.path());
        reader.note("", format!("`samples` is {samples}, but {path} gives one answer however often it is asked: send it in a batch without `samples`"));
    }
    let headers = headers(reader, &draft.fields.headers, &options.fields.headers, endpoint);
    let own_messages = draft.messages.is_some();
    let laid = lay::lay(reader, &mut draft, options, route, endpoint);
    check(reader, &draft, &laid, endpoint, own_messages, options);
    Some(Prompt {
        account: route.account.clone(),
        who: route.who.clone(),
        endpoint,
        model,
        headers,
        custom_id: draft.custom_id,
        body: Value::Object(laid.body),
    })
}

/// The model the body will name and where it stands, before it is laid in: it decides who answers, and so how the rest
/// is laid in. The batch's own is told of where a prompt's would stand.
fn model(reader: &mut Reader, draft: &Draft, options: &Options) -> Option<(String, String)> {
    let own = [(draft.own.get("model"), draft.own_at), (draft.fields.params.get("model"), "/params")];
    if let Some((Some(model), home)) = own.into_iter().find(|(model, _)| model.is_some()) {
        let at = format!("{home}/model");
        return reader.model(&at, model.clone()).map(|model| (model, at));
    }
    if draft.facade {
        reader.note(
            &format!("{}/model", draft.own_at),
            "is missing: a line of a provider's own form must say all it needs",
        );
        return None;
    }
    let batch = &options.fields;
    let of_batch = || batch.params.get("model").and_then(Value::as_str).or(batch.model.as_deref());
    let found = draft.fields.model.as_deref().or_else(of_batch).map(str::to_owned);
    if found.is_none() && !options.faulty && !reader.has_noted("/model") {
        reader.note("/model", "is missing: name a model here or for the whole batch");
    }
    found.map(|model| (model, "/model".to_owned()))
}

fn endpoint(reader: &mut Reader, draft: &Draft, model: &str, route: &Route) -> Option<Endpoint> {
    let fitting = route.kind.endpoints();
    let endpoint = match draft.endpoint {
        None => *fitting.first()?,
        Some(endpoint) => endpoint,
    };
    if fitting.contains(&endpoint) {
        return Some(endpoint);
    }
    let known: Vec<String> = fitting.iter().map(|endpoint| format!("`{}`", endpoint.path())).collect();
    // Where no endpoint was named, the model's is taken, and fits.
    reader.note(
        if draft.facade { "/url" } else { "/endpoint" },
        format!(
            "`{}` does not fit model {}, which goes to {} ({}): use {}",
            endpoint.path(),
            quote(model),
            route.account,
            route.kind.name(),
            known.join(", "),
        ),
    );
    None
}

/// The headers that go with it. The batch's are for those of its prompts whom they concern, facade lines included.
fn headers(reader: &mut Reader, own: &HeaderFields, batch: &HeaderFields, endpoint: Endpoint) -> ApiHeaders {
    match endpoint {
        Endpoint::Messages => ApiHeaders {
            version: Some(
                own.version.as_ref().or(batch.version.as_ref()).map_or(ANTHROPIC_VERSIONS[0], String::as_str).into(),
            ),
            betas: own.betas.as_ref().or(batch.betas.as_ref()).cloned().unwrap_or_default(),
        },
        Endpoint::ChatCompletions
        | Endpoint::Responses
        | Endpoint::Embeddings
        | Endpoint::Moderations
        | Endpoint::Completions => {
            if *own != HeaderFields::default() {
                reader.note("/headers", "only anthropic has these headers: leave them out");
            }
            ApiHeaders::default()
        }
    }
}

fn check(reader: &mut Reader, draft: &Draft, laid: &Laid, endpoint: Endpoint, own_messages: bool, options: &Options) {
    if !own_messages {
        let subject = validate::Subject::of(endpoint);
        match laid.body.get(subject.name) {
            None if reader.has_noted(&format!("/{}", subject.name)) || subject.is_elsewhere(&laid.body) => {}
            None => reader
                .note(&format!("{}/{}", draft.own_at, subject.name), format!("is missing: {}", subject.description)),
            Some(value) => subject.check(reader, &laid.source(draft.own_at, subject.name), value),
        }
    }
    if laid.body.get("stream") == Some(&Value::Bool(true)) {
        reader.note(&laid.source(draft.own_at, "stream"), NO_STREAM);
    }
    let cap = laid.body.get("max_tokens");
    if let Some(why) = validate::missing_cap(endpoint, cap) {
        match (cap, draft.facade) {
            (None, _) if options.faulty || reader.has_noted("/max_tokens") => {}
            (None, false) => reader.note("/max_tokens", format!("{why}; give it here or for the whole batch")),
            (_, true) => reader.note(&format!("{}/max_tokens", draft.own_at), why),
            (Some(_), false) => reader.note(&laid.source(draft.own_at, "max_tokens"), why),
        }
    }
}
