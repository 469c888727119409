//! Which provider account answers a model: an ordered list, the first match wins.
//! Knows no address and no key of a provider, and never asks one whether it has the model.

use crate::domain::{
    problem::quote,
    prompt::{ANTHROPIC_ENDPOINTS, Endpoint, OPENAI_ENDPOINTS},
};
use serde::{Deserialize, Serialize};

/// How a provider takes batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProviderKind {
    AnthropicBatch,
    // serde would spell it `open-ai-batch`.
    #[serde(rename = "openai-batch")]
    OpenAiBatch,
    /// No batches: requests one by one.
    #[serde(rename = "openai-online")]
    OpenAiOnline,
}

impl ProviderKind {
    /// The endpoints of such a provider; the first takes strings and `messages`.
    pub fn endpoints(self) -> &'static [Endpoint] {
        match self {
            ProviderKind::AnthropicBatch => ANTHROPIC_ENDPOINTS,
            ProviderKind::OpenAiBatch | ProviderKind::OpenAiOnline => OPENAI_ENDPOINTS,
        }
    }

    /// As configuration spells it.
    pub fn name(self) -> &'static str {
        match self {
            ProviderKind::AnthropicBatch => "anthropic-batch",
            ProviderKind::OpenAiBatch => "openai-batch",
            ProviderKind::OpenAiOnline => "openai-online",
        }
    }
}

/// One provider account and the models it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The configured name, for ever: chunks remember it.
    pub account: String,
    /// Who answers, as the cache key has it: see [`who`].
    pub who: String,
    pub kind: ProviderKind,
    pub models: Vec<Glob>,
}

/// Who answers, for the cache key: `anthropic` or `openai` at their own hosts, else the configured name, for two servers
/// that both call a model `llama-3` share nothing.
pub fn who(account: &str, base_url: &str) -> String {
    let rest = base_url.split_once("://").map_or(base_url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let host = authority.rsplit('@').next().unwrap_or(authority);
    let host = host.strip_suffix(":443").unwrap_or(host);
    match host.to_ascii_lowercase().as_str() {
        "api.anthropic.com" => "anthropic".into(),
        "api.openai.com" => "openai".into(),
        _ => account.into(),
    }
}

/// All accounts in the order of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routes(Vec<Route>);

impl Routes {
    pub fn new(routes: Vec<Route>) -> Routes {
        Routes(routes)
    }

    /// The account that answers this model; an `Err` is the message for whoever asked.
    pub fn find(&self, model: &str) -> Result<&Route, String> {
        let found = self.0.iter().find(|route| route.models.iter().any(|glob| glob.matches(model)));
        found.ok_or_else(|| {
            let known: Vec<String> = self
                .0
                .iter()
                .map(|route| {
                    let models: Vec<&str> = route.models.iter().map(Glob::as_str).collect();
                    format!("{} to {}", models.join(", "), route.account)
                })
                .collect();
            let known = if known.is_empty() { "no provider is configured".into() } else { known.join("; ") };
            format!("no provider answers model {}: name one of those configured ({known})", quote(model))
        })
    }

    pub fn iter(&self) -> impl Iterator<Item = &Route> {
        self.0.iter()
    }

    /// True if each of these accounts is one of `known` as it is there: only what models it answers, its place in the order,
    /// or whether anything is sent to it may be another.
    pub fn are_among(&self, known: &Routes) -> bool {
        let same =
            |one: &Route, other: &Route| (&one.account, &one.who, one.kind) == (&other.account, &other.who, other.kind);
        self.iter().all(|route| known.iter().any(|other| same(route, other)))
    }
}

/// The models of Anthropic and OpenAI themselves, each under its own name.
impl Default for Routes {
    fn default() -> Routes {
        let route = |name: &str, kind, models: &[&str]| Route {
            account: name.into(),
            who: name.into(),
            kind,
            models: models.iter().map(|text| Glob::parse(text).expect("our own patterns are well formed")).collect(),
        };
        Routes(vec![
            route("anthropic", ProviderKind::AnthropicBatch, DEFAULT_ANTHROPIC_MODELS),
            route("openai", ProviderKind::OpenAiBatch, DEFAULT_OPENAI_MODELS),
        ])
    }
}

/// What goes to Anthropic unless configured otherwise.
pub const DEFAULT_ANTHROPIC_MODELS: &[&str] = &["claude-*"];
/// What goes to OpenAI unless configured otherwise.
pub const DEFAULT_OPENAI_MODELS: &[&str] =
    &["gpt-*", "o[0-9]*", "chatgpt-*", "text-*", "omni-*", "davinci-*", "babbage-*", "ft:*"];

/// A pattern for model names: `*` any characters, `?` one, `[a-z0-9]` one of these, `[!0-9]` one of all others.
/// Matches whole names, and case counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    text: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Any,
    One,
    Exactly(char),
    Class { negated: bool, ranges: Vec<(char, char)> },
}

impl Glob {
    /// An `Err` says what is wrong with the pattern.
    pub fn parse(text: &str) -> Result<Glob, String> {
        let mut parts = Vec::new();
        let mut rest = text.chars();
        if text.is_empty() {
            return Err("an empty pattern matches nothing".into());
        }
        while let Some(c) = rest.next() {
            parts.push(match c {
                '*' => Part::Any,
                '?' => Part::One,
                '[' => {
                    let (class, after) =
                        rest.as_str().split_once(']').ok_or_else(|| format!("`{text}` lacks a `]`"))?;
                    rest = after.chars();
                    Part::class(class).ok_or_else(|| format!("`[{class}]` names no characters"))?
                }
                c => Part::Exactly(c),
            });
        }
        Ok(Glob { text: text.into(), parts })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Steps back to the last `*` only, so the time is at most names times pattern.
    pub fn matches(&self, name: &str) -> bool {
        let name: Vec<char> = name.chars().collect();
        let (mut at, mut part) = (0, 0);
        let mut star = None;
        while at < name.len() {
            match self.parts.get(part) {
                Some(Part::Any) => {
                    star = Some((part, at));
                    part += 1;
                }
                Some(single) if single.takes(name[at]) => {
                    part += 1;
                    at += 1;
                }
                _ => match star {
                    Some((star_part, taken)) => {
                        star = Some((star_part, taken + 1));
                        part = star_part + 1;
                        at = taken + 1;
                    }
                    None => return false,
                },
            }
        }
        self.parts[part..].iter().all(|rest| *rest == Part::Any)
    }
}

impl Part {
    fn class(text: &str) -> Option<Part> {
        let (negated, text) = text.strip_prefix('!').map_or((false, text), |text| (true, text));
        let mut ranges = Vec::new();
        let mut rest = text.chars();
        while let Some(low) = rest.next() {
            let mut ahead = rest.clone();
            let high = match (ahead.next(), ahead.next()) {
                (Some('-'), Some(high)) => {
                    rest = ahead;
                    high
                }
                _ => low,
            };
            ranges.push((low, high));
        }
        let sound = !ranges.is_empty() && ranges.iter().all(|(low, high)| low <= high);
        sound.then_some(Part::Class { negated, ranges })
    }

    fn takes(&self, c: char) -> bool {
        match self {
            Part::Any => false,
            Part::One => true,
            Part::Exactly(own) => *own == c,
            Part::Class { negated, ranges } => ranges.iter().any(|&(low, high)| (low..=high).contains(&c)) != *negated,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_whole_names() {
        for (glob, name, expect) in [
            ("claude-*", "claude-haiku-4-5", true),
            ("claude-*", "claude-", true),
            ("claude-*", "claude", false),
            ("claude-*", "my-claude-x", false),
            ("claude-*", "Claude-x", false),
            ("*", "", true),
            ("*", "x", true),
            ("o[0-9]*", "o3-mini", true),
            ("o[0-9]*", "omni-moderation", false),
            ("o[0-9]*", "o", false),
            ("o[!0-9]*", "omni", true),
            ("o[!0-9]*", "o1", false),
            ("ft:*", "ft:gpt-4o:acme::x", true),
            ("*-mini", "gpt-5-mini", true),
            ("*-mini", "gpt-mini-5", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("gpt-?", "gpt-5", true),
            ("gpt-?", "gpt-4o", false),
            ("x[a-]", "x-", true),
            ("é*", "école", true),
            ("llama", "llama", true),
            ("llama", "llama-3", false),
        ] {
            assert_eq!(Glob::parse(glob).expect("a pattern").matches(name), expect, "{glob} on {name}");
        }
    }

    #[test]
    fn many_stars_do_not_explode() {
        let glob = Glob::parse(&"a*".repeat(50)).expect("a pattern");
        assert!(!glob.matches(&format!("{}b", "a".repeat(20))));
        assert!(glob.matches(&"a".repeat(5000)));
    }

    #[test]
    fn unreadable_patterns_are_refused() {
        for text in ["", "o[0-9", "o[]", "o[!]", "o[9-0]"] {
            assert!(Glob::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn known_accounts_may_answer_other_models() {
        let known = Routes::default();
        let [first, second] = [&known.0[0], &known.0[1]];
        let other = Route { models: vec![Glob::parse("o*").expect("a pattern")], ..second.clone() };
        assert!(Routes::new(vec![other, first.clone()]).are_among(&known) && Routes::new(Vec::new()).are_among(&known));
        for stranger in [
            Route { account: "new".into(), ..first.clone() },
            Route { who: "proxy".into(), ..first.clone() },
            Route { kind: ProviderKind::OpenAiOnline, ..first.clone() },
        ] {
            assert!(!Routes::new(vec![first.clone(), stranger]).are_among(&known));
        }
    }

    #[test]
    fn by_default_claude_goes_to_anthropic_and_the_rest_to_openai() {
        let routes = Routes::default();
        for (model, account) in [
            ("claude-haiku-4-5", "anthropic"),
            ("gpt-5-mini", "openai"),
            ("o3", "openai"),
            ("chatgpt-4o-latest", "openai"),
            ("text-embedding-3-small", "openai"),
            ("omni-moderation-latest", "openai"),
            ("ft:gpt-4o:x", "openai"),
        ] {
            assert_eq!(routes.find(model).map(|route| route.account.as_str()), Ok(account), "{model}");
        }
        let message = routes.find("llama-3").expect_err("nobody's");
        assert!(
            message.contains("`llama-3`") && message.contains("claude-* to anthropic; gpt-*, o[0-9]*"),
            "{message}"
        );
    }

    #[test]
    fn the_first_match_wins() {
        let route = |account: &str| Route {
            account: account.into(),
            who: account.into(),
            kind: ProviderKind::OpenAiBatch,
            models: vec![Glob::parse("gpt-*").expect("a pattern")],
        };
        assert_eq!(Routes::new(vec![route("a"), route("b")]).find("gpt-5").map(|route| &route.account[..]), Ok("a"));
    }

    #[test]
    fn only_official_hosts_bear_the_official_names() {
        for (url, expect) in [
            ("https://api.anthropic.com", "anthropic"),
            ("https://API.openai.com:443/v1", "openai"),
            ("https://api.openai.com.evil.example/v1", "mine"),
            ("http://127.0.0.1:9000", "mine"),
            ("https://evil.example/api.openai.com", "mine"),
            ("https://api.openai.com@evil.example", "mine"),
            ("https://user@api.openai.com/v1", "openai"),
            ("", "mine"),
        ] {
            assert_eq!(who("mine", url), expect, "{url}");
        }
    }

    #[test]
    fn kinds_are_spelled_as_in_the_configuration() {
        for kind in [ProviderKind::AnthropicBatch, ProviderKind::OpenAiBatch, ProviderKind::OpenAiOnline] {
            assert_eq!(serde_json::to_value(kind).expect("a word"), kind.name());
        }
    }
}
