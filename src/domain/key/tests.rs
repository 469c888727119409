use super::*;
use crate::domain::{json, prompt::ApiHeaders};
use proptest::{prelude::*, sample::Index};
use serde::Deserialize;
use std::collections::HashMap;

/// A prompt that nothing was checked of.
fn prompt(who: &str, endpoint: Endpoint, betas: Vec<String>, body: Value) -> Prompt {
    let headers = ApiHeaders { version: None, betas };
    let (account, model) = ("any".into(), "any".into());
    Prompt { account, who: who.into(), endpoint, model, headers, custom_id: None, body }
}

fn key_of(body: &str) -> CacheKey {
    let body = json::parse(body.as_bytes()).expect("JSON");
    Question::new(&prompt("anthropic", Endpoint::Messages, vec![], body), None).expect("in range").sample(0)
}

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    who: String,
    endpoint: Endpoint,
    betas: Vec<String>,
    salt: String,
    sample: u64,
    body: String,
    same_as: Option<String>,
    key: String,
}

#[test]
fn golden_keys_hold() {
    let golden: Golden =
        serde_json::from_str(include_str!("../../../tests/fixtures/keys/golden.json")).expect("the golden file");
    let mut first: HashMap<String, String> = HashMap::new();
    for case in golden.cases {
        let body = json::parse(case.body.as_bytes()).expect("a body");
        let salt = Salt::new(json::parse(case.salt.as_bytes()).expect("a salt"));
        let asked = prompt(&case.who, case.endpoint, case.betas, body);
        let key = Question::new(&asked, salt.as_ref()).expect("in range").sample(case.sample).to_string();
        assert_eq!(key, case.key, "{}", case.name);
        let owner = first.entry(key).or_insert_with(|| case.name.clone());
        assert_eq!(*owner, case.same_as.unwrap_or_else(|| case.name.clone()), "whose key has {}", case.name);
    }
}

#[test]
fn everything_around_the_body_counts_but_the_version_and_the_clients_id() {
    let plain = prompt("anthropic", Endpoint::Messages, vec![], serde_json::json!({"model": "m"}));
    let key = |prompt: &Prompt, salt: Option<Salt>| Question::new(prompt, salt.as_ref()).expect("in range").sample(0);
    let same = Prompt {
        headers: ApiHeaders { version: Some("2026-10-21".into()), betas: vec![] },
        custom_id: Some("mine".into()),
        account: "second".into(),
        ..plain.clone()
    };
    assert_eq!(key(&plain, None), key(&same, None));
    let others = [
        Prompt { who: "vllm".into(), ..plain.clone() },
        Prompt { endpoint: Endpoint::ChatCompletions, ..plain.clone() },
        Prompt { headers: ApiHeaders { version: None, betas: vec!["b".into()] }, ..plain.clone() },
        Prompt { headers: ApiHeaders { version: None, betas: vec!["b".into(), "c".into()] }, ..plain.clone() },
        Prompt { headers: ApiHeaders { version: None, betas: vec!["b,c".into()] }, ..plain.clone() },
    ];
    let mut keys: Vec<CacheKey> = others.iter().map(|other| key(other, None)).collect();
    keys.extend([key(&plain, None), key(&plain, Salt::new("".into())), key(&plain, Salt::new(1.into()))]);
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), others.len() + 3);
}

#[test]
fn a_question_has_one_digest_and_many_samples() {
    let body = serde_json::json!({"model": "m"});
    let question = Question::new(&prompt("a", Endpoint::Messages, vec![], body.clone()), None).expect("in range");
    let again = Question::new(&prompt("a", Endpoint::Messages, vec![], body), None).expect("in range");
    assert_eq!((question.digest(), question.sample(7)), (again.digest(), again.sample(7)));
    let mut keys: Vec<CacheKey> = (0..1000).map(|n| question.sample(n)).collect();
    keys.dedup();
    assert_eq!(keys.len(), 1000);
    assert_ne!(&question.sample(0).as_bytes()[..16], &question.digest()[..]);
}

#[test]
fn a_key_no_number_can_be_made_of_is_an_error() {
    let huge = serde_json::Number::from_string_unchecked("1e99999999999999999999".into());
    let asked = prompt("a", Endpoint::Messages, vec![], serde_json::json!({"x": [{"y": huge}]}));
    assert!(Question::new(&asked, None).is_err());
}

#[test]
fn the_text_form_goes_both_ways() {
    let key = key_of("{}");
    assert_eq!(key.to_string().len(), CacheKey::TEXT_LEN);
    assert_eq!(CacheKey::parse(&key.to_string()), Some(key));
    assert_eq!(CacheKey::parse("short"), None);
}

/// JSON as a tree whose objects keep the order they are written in.
#[derive(Clone, Debug, PartialEq)]
enum Tree {
    Leaf(String),
    Array(Vec<Tree>),
    Object(Vec<(String, Tree)>),
}

impl Tree {
    fn text(&self) -> String {
        match self {
            Tree::Leaf(text) => text.clone(),
            Tree::Array(items) => format!("[{}]", items.iter().map(Tree::text).collect::<Vec<_>>().join(",")),
            Tree::Object(members) => {
                let members: Vec<String> = members
                    .iter()
                    .map(|(name, value)| format!("{}:{}", serde_json::to_string(name).expect("text"), value.text()))
                    .collect();
                format!("{{{}}}", members.join(" , "))
            }
        }
    }

    /// Every object's members in another order.
    fn turned(&self, by: usize) -> Tree {
        match self {
            Tree::Leaf(text) => Tree::Leaf(text.clone()),
            Tree::Array(items) => Tree::Array(items.iter().map(|item| item.turned(by)).collect()),
            Tree::Object(members) => {
                let mut members: Vec<_> =
                    members.iter().map(|(name, value)| (name.clone(), value.turned(by / 2))).collect();
                let count = members.len().max(1);
                members.rotate_left(by % count);
                if by % 2 == 1 {
                    members.reverse();
                }
                Tree::Object(members)
            }
        }
    }

    fn nodes(&self) -> usize {
        1 + match self {
            Tree::Leaf(_) => 0,
            Tree::Array(items) => items.iter().map(Tree::nodes).sum(),
            Tree::Object(members) => members.iter().map(|(_, value)| value.nodes()).sum(),
        }
    }

    /// Changes the n-th node, counted from the root: a leaf's value, a container's size.
    fn changed(&mut self, mut n: usize) {
        if n == 0 {
            return match self {
                Tree::Leaf(text) => *text = format!("[{text}]"),
                Tree::Array(items) => items.push(Tree::Leaf("null".into())),
                Tree::Object(members) => members.push(("a name of no other".into(), Tree::Leaf("null".into()))),
            };
        }
        n -= 1;
        let children: Vec<&mut Tree> = match self {
            Tree::Leaf(_) => vec![],
            Tree::Array(items) => items.iter_mut().collect(),
            Tree::Object(members) => members.iter_mut().map(|(_, value)| value).collect(),
        };
        for child in children {
            let nodes = child.nodes();
            if n < nodes {
                return child.changed(n);
            }
            n -= nodes;
        }
    }
}

#[test]
fn prompts_that_ask_nothing_have_a_name_of_their_own() {
    let [batch, other] = [1, 2].map(|at| crate::domain::id::BatchId::new(at, &[7; 10]));
    let keys = [(batch, 0), (batch, 1), (other, 0)].map(|(batch, at)| CacheKey::of_nothing(batch, at));
    assert_eq!(keys[0], CacheKey::of_nothing(batch, 0));
    assert!(keys[0] != keys[1] && keys[0] != keys[2]);
}

fn tree() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![
        "-?(0|[1-9][0-9]{0,20})(\\.[0-9]{1,5})?([eE][+-]?[0-9]{1,4})?",
        any::<String>().prop_map(|text| serde_json::to_string(&text).expect("text")),
        Just("null".to_owned()),
        Just("true".to_owned()),
    ];
    leaf.prop_map(Tree::Leaf).prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Tree::Array),
            prop::collection::btree_map("[a-c]|user|metadata|\\PC{0,3}", inner, 0..5)
                .prop_map(|members| Tree::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    /// Order of members, white space and depth do not matter.
    #[test]
    fn any_order_of_members_gives_the_same_key(value in tree(), by in 0usize..64) {
        let body = |value: &Tree| format!("{{\"model\":\"m\",\"x\":{}}}", value.text());
        prop_assert_eq!(key_of(&body(&value)), key_of(&body(&value.turned(by))));
    }

    /// Whatever is changed, however deep and whatever it is called: another key.
    #[test]
    fn any_change_gives_another_key(value in tree(), at in any::<Index>()) {
        let mut other = value.clone();
        other.changed(at.index(value.nodes()));
        let body = |value: &Tree| format!("{{\"model\":\"m\",\"x\":{}}}", value.text());
        prop_assert_ne!(key_of(&body(&value)), key_of(&body(&other)));
    }

    /// What is sent and what is hashed are one: the sent text has the same key.
    #[test]
    fn the_text_that_is_sent_has_the_same_key(value in tree()) {
        let text = format!("{{\"model\":\"m\",\"x\":{}}}", value.text());
        let body = json::parse(text.as_bytes()).expect("JSON");
        let sent = prompt("a", Endpoint::Messages, vec![], body).body_text();
        prop_assert!(!sent.contains(&b'\n'));
        prop_assert_eq!(key_of(std::str::from_utf8(&sent).expect("UTF-8")), key_of(&text));
    }
}
