//! An answer that another call brought, out of the cache or joined, may echo what was sent with that call beside its question:
//! members the question's key leaves out, for they cannot change an answer, but which may name people. Whoever reads the
//! answer to his own question is told nothing of them.

use bytes::Bytes;
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;
use std::fmt;

/// Top-level members that say something of who asked; see [`crate::domain::key::left_out`].
const TELLING: [&str; 4] = ["metadata", "prompt_cache_key", "safety_identifier", "user"];

/// The body with these members emptied, as far as they say anything; all else value for value.
pub fn without_its_sender(body: Bytes) -> Bytes {
    let Ok(text) = std::str::from_utf8(&body) else { return body };
    if !TELLING.iter().any(|name| text.contains(name)) {
        return body;
    }
    let Ok(Members(members)) = serde_json::from_str(text) else { return body }; // no object: it has no members
    let says = |(name, value): &(String, &RawValue)| {
        TELLING.contains(&name.as_str()) && !["null", "{}", "\"\""].contains(&value.get())
    };
    if !members.iter().any(says) {
        return body;
    }
    let mut out = b"{".to_vec();
    for (at, member) in members.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend(serde_json::to_vec(&member.0).expect("a string serializes"));
        out.push(b':');
        out.extend_from_slice(if says(member) { b"null" } else { member.1.get().as_bytes() });
    }
    out.push(b'}');
    out.into()
}

/// The members of an object, in their order, a repeated one as often as it comes.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;

        impl<'de> Visitor<'de> for Each {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(Each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &'static str, expect: &str) {
        assert_eq!(without_its_sender(Bytes::from_static(body.as_bytes())), expect.as_bytes());
    }

    #[test]
    fn what_tells_of_the_sender_is_emptied_and_all_else_stays_as_it_was() {
        check(r#"{"a":1e400,"user":"x","b":[1.0]}"#, r#"{"a":1e400,"user":null,"b":[1.0]}"#);
        check(r#"{"metadata":{"k":"v"},"metadata":{},"c":"user"}"#, r#"{"metadata":null,"metadata":{},"c":"user"}"#);
        check(
            r#"{ "safety_identifier": "x", "prompt_cache_key":"y" }"#,
            r#"{"safety_identifier":null,"prompt_cache_key":null}"#,
        );
        for same in
            [r#"{"user":null, "metadata":{}}"#, r#"{"in":{"user":"x"}}"#, "[\"user\"]", "{\"a\": 1}", "\"user\""]
        {
            check(same, same);
        }
    }
}
