//! Reading the body of a create call: `{"requests": [...]}` of up to 256 MB, one request in memory at a time.
//!
//! The body is on disk already; each request is copied to a file of its own batch, where results find it.

use std::{
    cell::RefCell,
    collections::HashSet,
    fs::File,
    io::{BufReader, BufWriter, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value, value::RawValue};

use super::check::{self, Where};
use crate::sim::{
    batch::{Requests, Span},
    faults::glob,
    oracle::Reply,
    problem::{Problem, Provider, Trouble},
    settings::{Anthropic, DuplicateId, Own, VersionRefusals},
};

/// Everything that says how a batch is read.
#[derive(Clone)]
pub(crate) struct Intake {
    pub(crate) own: Arc<Own<Anthropic>>,
    pub(crate) version: String,
}

impl Intake {
    /// The requests of the body at `from`, stored at `to`, or what is wrong with it.
    pub(crate) fn read(&self, from: &Path, to: PathBuf) -> Result<Requests, Problem> {
        let spool = BufWriter::with_capacity(1 << 18, File::create(&to)?);
        let reader = Reader {
            intake: self,
            requests: Requests::new(to),
            spool,
            offset: 0,
            seen: HashSet::new(),
            listed: false,
            problem: None,
        };
        let reader = RefCell::new(reader);
        let body = BufReader::with_capacity(1 << 18, File::open(from)?);
        let mut json = serde_json::Deserializer::from_reader(body);
        let read = Body(&reader).deserialize(&mut json).and_then(|()| json.end());
        let mut reader = reader.into_inner();
        if let Some(problem) = reader.problem {
            return Err(problem);
        }
        read.map_err(|error| Problem::invalid(format!("The request body is not valid JSON: {error}")))?;
        if !reader.listed {
            return Err(Problem::invalid("requests: Field required"));
        }
        if reader.requests.lines.is_empty() {
            return Err(Problem::invalid("requests: List should have at least 1 item after validation"));
        }
        reader.spool.flush()?;
        Ok(reader.requests)
    }

    /// What a request's own params will be refused for, once it is worked on.
    pub(crate) fn own_problem(&self, params: &Value) -> Option<Problem> {
        if let Some(message) = check::params(params, Where::Batch).or_else(|| check::version(params, &self.version)) {
            return Some(Problem::invalid(message));
        }
        let model = params["model"].as_str().unwrap_or_default();
        let unknown = self.own.common.unknown_models.iter().any(|pattern| glob(pattern, model));
        unknown.then(|| Problem::of(Provider::Anthropic, Trouble::NotFound).message(format!("model: {model}")))
    }

    pub(crate) fn reply(&self, params: &Value, problem: Option<Problem>) -> Reply {
        let nothing = Value::Object(Map::new());
        let body = if params.is_object() { params } else { &nothing };
        Reply::to(Provider::Anthropic, body, problem, self.own.common.answers)
    }
}

struct Reader<'a> {
    intake: &'a Intake,
    requests: Requests,
    spool: BufWriter<File>,
    offset: u64,
    seen: HashSet<String>,
    /// Has the member `requests` been seen?
    listed: bool,
    /// Why reading stopped, if not for broken JSON: serde's errors carry no values of ours.
    problem: Option<Problem>,
}

impl Reader<'_> {
    fn add(&mut self, raw: &RawValue) -> Result<(), Problem> {
        let number = self.requests.lines.len();
        let most = self.intake.own.special.max_requests;
        if number >= most {
            return Err(Problem::invalid(format!("requests: List should have at most {most} items after validation")));
        }
        let place = format!("requests.{number}");
        let item: Value = serde_json::from_str(raw.get())
            .map_err(|error| Problem::invalid(format!("The request body is not valid JSON: {error}")))?;
        let custom_id = check_item(&place, &item, self.intake.own.common.reject_unknown_fields)?;
        let params = &item["params"];
        let mut problem = self.intake.own_problem(params);
        let policy = self.intake.own.special.duplicate_custom_id;
        if !self.seen.insert(custom_id.to_owned()) && policy != DuplicateId::Accept {
            let duplicate = Problem::invalid(format!("{place}.custom_id: '{custom_id}' is not unique in the batch"));
            if policy == DuplicateId::Reject {
                return Err(duplicate);
            }
            problem = Some(duplicate);
        }
        let refuses = self.intake.own.special.version_refusals == VersionRefusals::Reject;
        if refuses
            && check::params(params, Where::Batch).is_none()
            && let Some(message) = check::version(params, &self.intake.version)
        {
            return Err(Problem::invalid(format!("{place}.params.{message}")));
        }
        let bytes = raw.get().as_bytes();
        self.spool.write_all(bytes)?;
        let span = Span { offset: self.offset, length: bytes.len() };
        self.offset += bytes.len() as u64;
        self.requests.add(custom_id, &span, &self.intake.reply(params, problem));
        Ok(())
    }
}

/// The `custom_id` of an item of the right form; its params are nobody's concern yet.
fn check_item<'i>(place: &str, item: &'i Value, reject_unknown: bool) -> Result<&'i str, Problem> {
    let members =
        item.as_object().ok_or_else(|| Problem::invalid(format!("{place}: Input should be a valid dictionary")))?;
    if let Some(name) = ["custom_id", "params"].into_iter().find(|name| !members.contains_key(*name)) {
        return Err(Problem::invalid(format!("{place}.{name}: Field required")));
    }
    let wrong = |message: &str| Err(Problem::invalid(format!("{place}.custom_id: {message}")));
    let Some(custom_id) = members["custom_id"].as_str() else { return wrong("Input should be a valid string") };
    if custom_id.chars().count() > 64 {
        return wrong("String should have at most 64 characters");
    }
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if custom_id.is_empty() || !custom_id.bytes().all(fits) {
        return wrong("String should match pattern '^[a-zA-Z0-9_-]{1,64}$'");
    }
    let extra = members.keys().find(|name| !matches!(name.as_str(), "custom_id" | "params"));
    match extra.filter(|_| reject_unknown) {
        Some(extra) => Err(Problem::invalid(format!("{place}.{extra}: Extra inputs are not permitted"))),
        None => Ok(custom_id),
    }
}

/// The outer object.
struct Body<'a, 'r>(&'a RefCell<Reader<'r>>);

impl<'de> DeserializeSeed<'de> for Body<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Body<'_, '_> {
    type Value = ();

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("an object with requests")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(name) = members.next_key::<String>()? {
            if name == "requests" {
                self.0.borrow_mut().listed = true;
                members.next_value_seed(List(self.0))?;
            } else if self.0.borrow().intake.own.common.reject_unknown_fields {
                let problem = Problem::invalid(format!("{name}: Extra inputs are not permitted"));
                self.0.borrow_mut().problem = Some(problem);
                return Err(A::Error::custom("refused"));
            } else {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// The list within it.
struct List<'a, 'r>(&'a RefCell<Reader<'r>>);

impl<'de> DeserializeSeed<'de> for List<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for List<'_, '_> {
    type Value = ();

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a list of requests")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while let Some(raw) = items.next_element::<Box<RawValue>>()? {
            let added = self.0.borrow_mut().add(&raw);
            if let Err(problem) = added {
                self.0.borrow_mut().problem = Some(problem);
                return Err(A::Error::custom("refused"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{settings::Settings, spool::Spool};

    fn read(body: &str) -> Result<Requests, String> {
        let spool = Spool::create(Path::new("/tmp")).expect("a temporary directory");
        let path = spool.fresh();
        std::fs::write(&path, body).expect("room on the disk");
        let settings = Settings::default();
        let special = Anthropic { max_requests: 2, ..settings.anthropic };
        let own = Arc::new(Own { common: settings.common, special });
        let intake = Intake { own, version: "2023-06-01".into() };
        intake.read(&path, spool.fresh()).map_err(|problem| problem.message)
    }

    #[test]
    fn requests_are_read_one_by_one() {
        let requests =
            read(r#" {"requests": [{"custom_id":"a","params":{}} , {"params":{"model":"m"},"custom_id":"b"}]} "#);
        let requests = requests.expect("a proper body");
        let ids: Vec<_> = requests.lines.iter().map(|line| &*line.custom_id).collect();
        assert_eq!(ids, ["a", "b"]);
    }

    #[test]
    fn what_is_refused_at_once() {
        let check = |body: &str, start: &str| {
            let message = read(body).err().unwrap_or_default();
            assert!(message.starts_with(start), "{body}: {message}");
        };
        check(r#"{"requests": []}"#, "requests: List should have at least 1");
        check(r#"{}"#, "requests: Field required");
        check(r#"{"requests": [{}]}"#, "requests.0.custom_id: Field required");
        check(r#"{"requests": [{"custom_id":"a b","params":{}}]}"#, "requests.0.custom_id: String should match");
        check(r#"{"requests": [{"custom_id":"a","params":{},"x":1}]}"#, "requests.0.x: Extra");
        check(r#"{"requests": [{"custom_id":"a","params":{}}], "metadata": {}}"#, "metadata: Extra");
        check(r#"{"requests": [{"custom_id":"a","params":{}}"#, "The request body is not valid JSON");
        let pair = r#"{"custom_id":"a","params":{}}"#;
        check(&format!("{{\"requests\": [{pair},{pair}]}}"), "requests.1.custom_id: 'a' is not unique");
        let three = ["a", "b", "c"].map(|id| format!("{{\"custom_id\":\"{id}\",\"params\":{{}}}}")).join(",");
        check(&format!("{{\"requests\": [{three}]}}"), "requests: List should have at most 2");
        let long = "x".repeat(65);
        check(
            &format!(r#"{{"requests": [{{"custom_id":"{long}","params":{{}}}}]}}"#),
            "requests.0.custom_id: String should have at most 64",
        );
    }
}
