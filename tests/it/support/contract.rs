//! `openapi.yaml` as a judge: every answer that a story's client sees must be one that the document promises, down to
//! its headers and members. A member, header or status that nobody wrote down is found by whichever story meets it.

use super::{
    client::{NDJSON, Reply, lines},
    source::home,
};
use reqwest::Method;
use serde_json::{Map, Value, json};
use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex},
};

/// Pages for people, and what they load: they change with their look, and no program should lean on them.
const PAGES: [&str; 2] = ["/docs", "/assets"];
/// Headers that HTTP itself sends.
const USUAL: [&str; 9] = [
    "content-type",
    "content-length",
    "content-encoding",
    "transfer-encoding",
    "date",
    "connection", // `close` while the gateway drains
    "vary",
    // On every answer; the document's introduction says so.
    "x-content-type-options",
    "cache-control",
];
/// Larger answers are judged by their first lines only, or by the stories that made them large.
const JUDGED_BYTES: usize = 1 << 20;
const JUDGED_LINES: usize = 100;

pub(crate) struct Contract {
    pub(crate) text: String,
    pub(crate) document: Value,
    /// The same, but no answer may have members that the document does not name.
    strict: Value,
    validators: Mutex<HashMap<String, Arc<jsonschema::Validator>>>,
}

pub(crate) static CONTRACT: LazyLock<Contract> = LazyLock::new(|| {
    let text = std::fs::read_to_string(home().join("openapi.yaml")).expect("openapi.yaml is there");
    let document: Value = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("openapi.yaml: {error}"));
    let mut strict = document.clone();
    close(&mut strict);
    Contract { text, document, strict, validators: Mutex::default() }
});

/// An operation of the document.
#[derive(Clone, Copy)]
pub(crate) struct Operation<'a> {
    pub(crate) path: &'a str,
    pub(crate) method: &'a str,
    pub(crate) said: &'a Value,
}

impl Contract {
    pub(crate) fn operations(&self) -> impl Iterator<Item = Operation<'_>> {
        let paths = self.document["paths"].as_object().expect("there are paths");
        paths.iter().flat_map(|(path, item)| {
            let methods = item.as_object().expect("a path's item").iter().filter(|(name, _)| *name != "parameters");
            methods.map(move |(method, said)| Operation { path, method, said })
        })
    }

    /// Follows `$ref` to what is meant.
    pub(crate) fn resolve<'a>(&'a self, mut value: &'a Value) -> &'a Value {
        while let Some(place) = value["$ref"].as_str() {
            let pointer = place.strip_prefix('#').expect("all of it is in one file");
            value = self.document.pointer(pointer).unwrap_or_else(|| panic!("{place} leads nowhere"));
        }
        value
    }

    /// What a value violates of a schema of this document.
    pub(crate) fn violations(&self, schema: &Value, value: &Value) -> Vec<String> {
        self.judge(false, schema, value)
    }

    fn judge(&self, strictly: bool, schema: &Value, value: &Value) -> Vec<String> {
        let document = if strictly { &self.strict } else { &self.document };
        let key = format!("{strictly} {schema}");
        let mut validators = self.validators.lock().expect("nobody panics with it");
        let validator = validators.entry(key).or_insert_with(|| {
            let whole = json!({"allOf": [schema], "components": document["components"]});
            let built = jsonschema::draft202012::options().should_validate_formats(true).build(&whole);
            Arc::new(built.unwrap_or_else(|error| panic!("{schema}: {error}")))
        });
        let validator = Arc::clone(validator);
        drop(validators);
        validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect()
    }

    /// Panics with all that an answer breaks of what the document promises.
    pub(crate) fn hold(&self, method: &Method, path: &str, reply: &Reply) {
        let route = path.split('?').next().unwrap_or_default();
        if is_page(route) {
            return;
        }
        let mut wrong = Vec::new();
        let matching: Vec<Operation> = self.operations().filter(|operation| leads(operation.path, route)).collect();
        match matching.iter().find(|operation| operation.method.eq_ignore_ascii_case(method.as_str())) {
            Some(operation) => self.hold_to(*operation, reply, &mut wrong),
            None if matching.is_empty() && reply.status == 404 => {}
            None if reply.status == 403 || reply.status == 405 && reply.headers.contains_key("allow") => {}
            None => wrong.push("the document knows no such operation".to_owned()),
        }
        let told: String = reply.text.chars().take(2_000).collect();
        assert!(
            wrong.is_empty(),
            "{method} {path} answered {} otherwise than openapi.yaml says:\n{}\n{:?}\n{told}",
            reply.status,
            wrong.join("\n"),
            reply.headers
        );
    }

    fn hold_to(&self, operation: Operation, reply: &Reply, wrong: &mut Vec<String>) {
        let response = self.resolve(&operation.said["responses"][reply.status.to_string()]);
        if response.is_null() {
            return wrong.push("this status is not promised".to_owned());
        }
        self.hold_headers(&response["headers"], reply, wrong);
        let kind = reply.header("content-type").split(';').next().unwrap_or_default();
        let content = &response["content"][kind];
        if content.is_null() {
            return wrong.push(format!("content of type `{kind}` is not promised"));
        }
        if kind == NDJSON {
            let line = json!({"$ref": "#/components/schemas/Result"});
            for value in lines(&reply.text).iter().take(JUDGED_LINES) {
                wrong.extend(self.judge(true, &line, value));
            }
        } else if kind.ends_with("json") && reply.text.len() < JUDGED_BYTES {
            wrong.extend(self.judge(true, &content["schema"], &reply.json()));
        }
    }

    fn hold_headers(&self, promised: &Value, reply: &Reply, wrong: &mut Vec<String>) {
        let promised: Map<String, Value> = promised.as_object().cloned().unwrap_or_default();
        let promised = promised.iter().map(|(name, said)| (name.to_lowercase(), self.resolve(said).clone()));
        let promised: HashMap<String, Value> = promised.collect();
        for (name, said) in &promised {
            let Some(value) = reply.headers.get(name) else {
                if said["required"] == true {
                    wrong.push(format!("header `{name}` is missing"));
                }
                continue;
            };
            let text = value.to_str().expect("a header of ASCII");
            let value = if said["schema"]["type"] == "integer" {
                text.parse::<u64>().map_or_else(|_| json!(text), |number| json!(number))
            } else {
                json!(text)
            };
            wrong.extend(self.violations(&said["schema"], &value).iter().map(|why| format!("header `{name}`{why}")));
        }
        for name in reply.headers.keys().map(|name| name.as_str()) {
            if !promised.contains_key(name) && !USUAL.contains(&name) {
                wrong.push(format!("header `{name}` is not written down"));
            }
        }
    }
}

/// Is it a page for people, or below one?
pub(crate) fn is_page(route: &str) -> bool {
    let route = route.split('?').next().unwrap_or(route);
    route == "/"
        || PAGES
            .iter()
            .any(|page| route.strip_prefix(page).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

/// Does a path of the document lead to this one?
fn leads(template: &str, path: &str) -> bool {
    let (template, path): (Vec<&str>, Vec<&str>) = (template.split('/').collect(), path.split('/').collect());
    template.len() == path.len()
        && template.iter().zip(&path).all(|(said, given)| said == given || said.starts_with('{') && !given.is_empty())
}

/// Closes every object that names its members and does not say what else there may be.
fn close(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.values_mut().for_each(close);
            let open = ["additionalProperties", "unevaluatedProperties", "$ref", "allOf", "anyOf", "oneOf"];
            let names = members.get("properties").is_some_and(Value::is_object) && members.contains_key("required");
            if names && !open.iter().any(|word| members.contains_key(*word)) {
                members.insert("additionalProperties".to_owned(), Value::Bool(false));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}
