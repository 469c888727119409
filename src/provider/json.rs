//! A tolerant view of a provider's JSON: members are looked at one by one, so that one odd value spoils nothing else,
//! and what is not looked at is not copied. Knows no provider. No `untagged` and no `flatten`: numbers keep their digits.

use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, Visitor},
};
use serde_json::value::RawValue;
use std::{borrow::Cow, fmt};

/// The members of one JSON object. `null` counts as absent; of members with the same name the last one holds.
pub(super) struct Members<'a>(Vec<(Text<'a>, &'a RawValue)>);

impl<'a> Members<'a> {
    /// The object that is all of `json`; none where it is anything else.
    pub(super) fn read(json: &'a str) -> Option<Members<'a>> {
        serde_json::from_str(json).ok()
    }

    /// As [`Members::read`], for a whole reply.
    pub(super) fn read_bytes(json: &'a [u8]) -> Option<Members<'a>> {
        Members::read(std::str::from_utf8(json).ok()?)
    }

    pub(super) fn get(&self, name: &str) -> Option<&'a RawValue> {
        let (_, value) = self.0.iter().rev().find(|(key, _)| key.0 == name)?;
        (value.get() != "null").then_some(*value)
    }

    pub(super) fn object(&self, name: &str) -> Option<Members<'a>> {
        Members::read(self.get(name)?.get())
    }

    pub(super) fn list(&self, name: &str) -> Option<Vec<&'a RawValue>> {
        serde_json::from_str(self.get(name)?.get()).ok()
    }

    /// Whether it is a list with something in it.
    pub(super) fn has_items(&self, name: &str) -> bool {
        self.list(name).is_some_and(|items| !items.is_empty())
    }

    /// A string; lone surrogates become U+FFFD.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        text(self.get(name)?)
    }

    /// A string that says something: providers write `""` where they mean nothing.
    pub(super) fn word(&self, name: &str) -> Option<String> {
        self.text(name).filter(|text| !text.is_empty())
    }

    /// A code: a word, or a number taken as one.
    pub(super) fn code(&self, name: &str) -> Option<String> {
        let raw = self.get(name)?;
        let number = || raw.get().starts_with(|first: char| first.is_ascii_digit()).then(|| raw.get().to_owned());
        self.word(name).or_else(number)
    }

    /// A count; anything but a whole number is absent.
    pub(super) fn count(&self, name: &str) -> Option<u64> {
        let digits = self.get(name)?.get();
        digits.strip_suffix(".0").unwrap_or(digits).parse().ok()
    }
}

/// The string that `raw` is; lone surrogates become U+FFFD.
pub(super) fn text(raw: &RawValue) -> Option<String> {
    serde_json::from_str::<Text<'_>>(raw.get()).ok().map(|text| text.0.into_owned())
}

/// At most `most` characters of `text`, cut with an ellipsis.
pub(super) fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Members<'a>, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Vec<(Text<'de>, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::with_capacity(8);
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(Object).map(Members)
    }
}

/// A JSON string as text. Asked for as *bytes*, because only so does `serde_json` accept a lone surrogate; it then
/// hands out the surrogate's three WTF-8 bytes, which become one U+FFFD.
struct Text<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text<'a>, D::Error> {
        struct Wtf8;
        impl<'de> Visitor<'de> for Wtf8 {
            type Value = Cow<'de, str>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_bytes<E: de::Error>(self, bytes: &'de [u8]) -> Result<Self::Value, E> {
                Ok(std::str::from_utf8(bytes).map_or_else(|_| Cow::Owned(without_surrogates(bytes)), Cow::Borrowed))
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Self::Value, E> {
                Ok(Cow::Owned(without_surrogates(bytes)))
            }
        }
        deserializer.deserialize_bytes(Wtf8).map(Text)
    }
}

/// `bytes` as text, each surrogate (ED A0..BF xx in WTF-8) replaced by one U+FFFD.
fn without_surrogates(mut bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    loop {
        match std::str::from_utf8(bytes) {
            Ok(rest) => {
                text.push_str(rest);
                return text;
            }
            Err(error) => {
                let (good, rest) = bytes.split_at(error.valid_up_to());
                text.push_str(&String::from_utf8_lossy(good));
                text.push(char::REPLACEMENT_CHARACTER);
                let surrogate = matches!(rest, [0xED, 0xA0..=0xBF, _, ..]);
                bytes = &rest[if surrogate { 3 } else { 1 }..];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_read_one_by_one() {
        let object =
            Members::read(r#"{"a":1,"n":null,"s":"x","e":"","o":{"k":[1,2]},"a":2.0,"big":1e400,"code":429}"#).unwrap();
        assert_eq!(object.count("a"), Some(2), "the last of two holds");
        assert!(object.get("n").is_none() && object.get("absent").is_none());
        assert_eq!((object.text("s"), object.word("s")), (Some("x".into()), Some("x".into())));
        assert_eq!((object.text("e"), object.word("e")), (Some(String::new()), None));
        assert_eq!(object.object("o").unwrap().list("k").unwrap().len(), 2);
        assert_eq!(object.count("big"), None);
        assert_eq!(object.get("big").unwrap().get(), "1e400");
        assert_eq!(object.code("code"), Some("429".into()));
    }

    #[test]
    fn lone_surrogates_become_one_replacement_character_each() {
        let object = Members::read(r#"{"t":"a\ud83d b\udc00","ok":"\ud83d\ude00","\ud83d":1}"#).unwrap();
        assert_eq!(object.text("t").unwrap(), "a\u{FFFD} b\u{FFFD}");
        assert_eq!(object.text("ok").unwrap(), "😀");
    }

    #[test]
    fn what_is_no_object_is_none() {
        for json in ["", "[]", "1", r#"{"a":1} {"b":2}"#, r#"{"custom_id": "cut off"#, r#"{"a":NaN}"#] {
            assert!(Members::read(json).is_none(), "{json}");
        }
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        assert_eq!(shortened("ééé", 2), "éé…");
        assert_eq!(shortened("ééé", 3), "ééé");
    }
}
