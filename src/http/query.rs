//! Query parameters: each known, each once, each in its range; anything else is a 422 that names it.

use super::error::ApiError;
use std::{collections::BTreeMap, ops::RangeInclusive};

/// The parameters of one request.
pub(super) struct Query(BTreeMap<String, String>);

impl Query {
    /// Reads the query; only `known` names may occur. One that ends in a dot stands for all that begin with it.
    pub(super) fn parse(text: Option<&str>, known: &[&str]) -> Result<Query, ApiError> {
        let mut parameters = BTreeMap::new();
        for (name, value) in form_urlencoded(text.unwrap_or_default())? {
            let is = |known: &str| name == known && !known.ends_with('.');
            let is_below = |known: &str| known.ends_with('.') && name.len() > known.len() && name.starts_with(known);
            if !known.iter().any(|known| is(known) || is_below(known)) {
                let known: Vec<String> = known
                    .iter()
                    .map(|name| name.strip_suffix('.').map_or((*name).to_owned(), |name| format!("{name}.NAME")))
                    .collect();
                let known = known.join("`, `");
                let shown: String = name.chars().take(100).flat_map(char::escape_default).collect();
                return Err(ApiError::invalid(format!("unknown query parameter `{shown}`: known here are `{known}`")));
            }
            if parameters.insert(name.clone(), value).is_some() {
                return Err(ApiError::invalid(format!("query parameter `{name}` is given twice")));
            }
        }
        Ok(Query(parameters))
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Parameters whose names begin with `prefix`, without it.
    pub(super) fn below(&self, prefix: &str) -> BTreeMap<String, String> {
        let below = |(name, value): (&String, &String)| Some((name.strip_prefix(prefix)?.to_owned(), value.clone()));
        self.0.iter().filter_map(below).collect()
    }

    pub(super) fn number(&self, name: &str, range: RangeInclusive<u64>) -> Result<Option<u64>, ApiError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match text.parse() {
            Ok(number) if range.contains(&number) && text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(Some(number)),
            _ => Err(ApiError::invalid(format!(
                "`{name}` must be a whole number from {} to {}",
                range.start(),
                range.end()
            ))),
        }
    }

    pub(super) fn flag(&self, name: &str) -> Result<bool, ApiError> {
        match self.text(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(ApiError::invalid(format!("`{name}` must be `true` or `false`"))),
        }
    }
}

fn form_urlencoded(text: &str) -> Result<Vec<(String, String)>, ApiError> {
    let broken = || ApiError::invalid("the query is not valid percent-encoded UTF-8");
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((decode(name).ok_or_else(broken)?, decode(value).ok_or_else(broken)?))
        })
        .collect()
}

fn decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'+' => out.push(b' '),
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
                out.push(u8::try_from(high * 16 + low).ok()?);
            }
            _ => out.push(byte),
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_decoded_and_strangers_named() {
        let query = Query::parse(Some("a=x%20y+z&n=5&f=true"), &["a", "n", "f"]).unwrap();
        assert_eq!(query.text("a"), Some("x y z"));
        assert_eq!(query.number("n", 1..=9).unwrap(), Some(5));
        assert!(query.flag("f").unwrap());
        for bad in ["b=1", "a=1&a=2", "a=%zz", "a=%ff"] {
            assert!(Query::parse(Some(bad), &["a"]).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_name_that_ends_in_a_dot_stands_for_many() {
        let query = Query::parse(Some("m.a=1&m.b.c=2&n=3"), &["m.", "n"]).unwrap();
        let below: Vec<_> = query.below("m.").into_iter().collect();
        assert_eq!(below, [("a".to_owned(), "1".to_owned()), ("b.c".to_owned(), "2".to_owned())]);
        for bad in ["m.=1", "m=1", "m.a=1&m.a=1", "mm.a=1"] {
            assert!(Query::parse(Some(bad), &["m.", "n"]).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for bad in ["n=0", "n=-1", "n=%2b5", "n=1e3", "n=", "n=99999999999999999999"] {
            let query = Query::parse(Some(bad), &["n"]).unwrap();
            assert!(query.number("n", 1..=1000).is_err(), "{bad}");
        }
    }
}
