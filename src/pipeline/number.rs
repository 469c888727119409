//! Which sample a prompt is: identical prompts of a batch are independent samples, numbered as they come.
//! Also finds a `custom_id` given twice. Pure; remembers 16 bytes a question, not prompts.
//!
//! In a run the askings of all its batches are counted, and Redis counts them: here each result only gets a
//! [`Key::Drawn`], and the numbers of a page are drawn together when it is written.

use super::page::Asked;
use crate::{
    domain::{
        batch::Repeats,
        key::{CacheKey, Question},
        prompt::Endpoint,
    },
    store::runs::{Asking, DrawnPage, Kind},
};
use sha2::{Digest, Sha256};
use std::collections::{HashMap, hash_map::Entry};

/// Counts the questions of one batch.
pub struct Numbering {
    repeats: Repeats,
    samples: u32,
    drawn: HashMap<[u8; 16], u32>,
    custom_ids: HashMap<[u8; 12], u32>,
}

/// Where the key of a result comes from.
#[derive(Clone)]
pub enum Key {
    Known(CacheKey),
    /// From the number its run has for it. `shared`: that number is its sample.
    Drawn {
        question: Question,
        shared: bool,
    },
}

/// What a result asks of its run; none if its key is known.
pub fn asking(asked: &Asked<Key>) -> Option<Asking> {
    let Key::Drawn { question, shared } = &asked.key else { return None };
    let question = question.digest();
    let kind = match &asked.custom_id {
        _ if *shared => Kind::Shared,
        Some(custom_id) => {
            let digest: [u8; 32] = Sha256::new_with_prefix(question).chain_update(custom_id).finalize().into();
            Kind::Named(std::array::from_fn(|n| digest[n]))
        }
        None => Kind::Anew,
    };
    Some(Asking { row: asked.row(), question, kind })
}

/// The key of a result whose page has drawn; none if the page drew nothing for it.
pub fn key(asked: &Asked<Key>, drawn: &DrawnPage) -> Option<CacheKey> {
    match &asked.key {
        Key::Known(key) => Some(*key),
        Key::Drawn { question, .. } => {
            drawn.numbers.get(&asked.row()).map(|number| question.sample(u64::from(*number)))
        }
    }
}

/// The numbers one prompt draws: `first .. first + samples`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drawn {
    pub first: u32,
    /// The question came before in this batch.
    pub repeated: bool,
}

impl Numbering {
    pub fn new(repeats: Repeats, samples: u32) -> Numbering {
        Numbering { repeats, samples, drawn: HashMap::new(), custom_ids: HashMap::new() }
    }

    /// Numbers for the samples of a prompt. Where an endpoint has no samples, repeats are shared in any case.
    pub fn draw(&mut self, question: &Question, endpoint: Endpoint) -> Drawn {
        let shared = self.shares(endpoint);
        match self.drawn.entry(question.digest()) {
            Entry::Vacant(free) => {
                free.insert(self.samples);
                Drawn { first: 0, repeated: false }
            }
            Entry::Occupied(_) if shared => Drawn { first: 0, repeated: true },
            Entry::Occupied(mut next) => {
                let first = *next.get();
                next.insert(first + self.samples);
                Drawn { first, repeated: true }
            }
        }
    }

    pub fn shares(&self, endpoint: Endpoint) -> bool {
        self.repeats == Repeats::Share || !endpoint.has_samples()
    }

    /// The position of an earlier prompt with this `custom_id`, if there is one.
    pub fn custom_id_before(&mut self, custom_id: &str, position: u32) -> Option<u32> {
        let digest: [u8; 32] = Sha256::digest(custom_id.as_bytes()).into();
        match self.custom_ids.entry(std::array::from_fn(|n| digest[n])) {
            Entry::Occupied(first) => Some(*first.get()),
            Entry::Vacant(free) => {
                free.insert(position);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::prompt::{ApiHeaders, Prompt};

    fn question(endpoint: Endpoint) -> Question {
        let body = serde_json::json!({"model": "m"});
        let (account, who, model) = ("a".into(), "a".into(), "m".into());
        let prompt = Prompt { account, who, endpoint, model, headers: ApiHeaders::default(), custom_id: None, body };
        Question::new(&prompt, None).unwrap()
    }

    #[test]
    fn repeats_are_samples_but_where_there_are_none() {
        for endpoint in Endpoint::ALL {
            for repeats in [Repeats::Sample, Repeats::Share] {
                let mut numbering = Numbering::new(repeats, 1);
                let question = question(endpoint);
                assert_eq!(numbering.draw(&question, endpoint), Drawn { first: 0, repeated: false });
                let shared = repeats == Repeats::Share || !endpoint.has_samples();
                let first = u32::from(!shared);
                assert_eq!(numbering.draw(&question, endpoint), Drawn { first, repeated: true }, "{endpoint:?}");
            }
        }
    }
}
