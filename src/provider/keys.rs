//! An account's keys: the text that opens it, a name that says nothing of it, and as whom each was last heard.

use super::{CallError, Candidate, secret::Secret};
use crate::domain::identity::{Identity, Kin};
use reqwest::header::HeaderValue;
use std::sync::{Mutex, PoisonError};

/// One key.
pub(super) struct Key {
    /// As it is sent.
    pub header: HeaderValue,
    secret: Secret,
    heard: Mutex<Option<Identity>>,
}

impl Key {
    /// None where no header can carry it.
    pub(super) fn new(prefix: &str, secret: &Secret) -> Option<Key> {
        let mut header = HeaderValue::from_str(&format!("{prefix}{}", secret.reveal())).ok()?;
        header.set_sensitive(true);
        let usable = !secret.reveal().trim().is_empty();
        usable.then(|| Key { header, secret: secret.clone(), heard: Mutex::default() })
    }

    /// As [`super::BatchProvider::credential`].
    pub(super) fn name(&self) -> String {
        self.secret.name()
    }

    /// A text without this key in it.
    pub(super) fn hide(&self, text: &str) -> String {
        text.replace(self.secret.reveal(), "***")
    }

    pub(super) fn heard(&self) -> Option<Identity> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A reply to this key said so. One that names nobody takes nothing back.
    pub(super) fn hear(&self, identity: Identity) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        if heard.is_none() || identity.organisation.is_some() {
            *heard = Some(identity);
        }
    }
}

/// A round of all keys in which none was let in yet.
#[derive(Default)]
pub(super) struct Round(Option<CallError>);

impl Round {
    /// Notes a refusal that another key may not meet; any other error ends the round. A 404 outweighs a refused key: the
    /// key behind it works, and what it says of the object counts.
    pub(super) fn shut_out(&mut self, error: CallError) -> Result<(), CallError> {
        match error {
            CallError::NotFound { .. } => self.0 = Some(error),
            CallError::Paused { .. } => self.0 = self.0.take().or(Some(error)),
            CallError::Again { .. } | CallError::Refused { .. } => return Err(error),
        }
        Ok(())
    }

    pub(super) fn end(self) -> CallError {
        self.0.expect("an account has a key: checked in Transport::new")
    }
}

/// A search for the batch of a lost create, under one key after another. *Not found* counts only if the key that created
/// was let in: what it made may be invisible to all others. What a key of another account sees is none of ours.
#[derive(Default)]
pub(super) struct Search {
    made_with: Option<String>,
    made_in: Option<Identity>,
    /// The creating key was let in, and any key was.
    looked: bool,
    let_in: bool,
    refused: Option<CallError>,
    found: Vec<Candidate>,
}

impl Search {
    pub(super) fn new(made_with: Option<&String>, made_in: Option<&Identity>) -> Search {
        Search { made_with: made_with.cloned(), made_in: made_in.cloned(), ..Search::default() }
    }

    /// What a key's list held.
    pub(super) fn under(&mut self, key: &Key, found: Result<Vec<Candidate>, CallError>) -> Result<(), CallError> {
        match found {
            Ok(found) => {
                self.let_in = true;
                let kin = self.made_in.as_ref().zip(key.heard()).map(|(made, heard)| made.beside(&heard));
                if matches!(kin, Some(Kin::Moved | Kin::Another)) {
                    return Ok(());
                }
                self.looked |= self.made_with.as_deref().is_none_or(|made_with| made_with == key.name());
                for one in found {
                    if !self.found.iter().any(|known| known.remote == one.remote) {
                        self.found.push(one);
                    }
                }
            }
            Err(error @ (CallError::Paused { .. } | CallError::NotFound { .. })) => {
                self.refused.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// # Errors
    /// No key was let in; or nothing was found and the creating key could not look: `NotFound`.
    pub(super) fn end(self, what: &str) -> Result<Vec<Candidate>, CallError> {
        match self.refused {
            Some(refused) if !self.let_in => Err(refused),
            _ if self.looked || !self.found.is_empty() => Ok(self.found),
            _ => {
                let key = self.made_with.unwrap_or_default();
                Err(CallError::NotFound { detail: format!("{what}: nothing found, and its key {key} cannot look") })
            }
        }
    }
}
