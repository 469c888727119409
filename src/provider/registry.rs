//! From a configured account to its adapter: the one place that lists the providers. Reads no configuration itself.

use super::{
    BatchProvider, anthropic::Anthropic, measured::Measured, online::Online, openai::OpenAi, secret::Secret,
    transport::Transport,
};
use serde::{Deserialize, Serialize};
use std::{sync::Arc, time::Duration};

/// Which provider's API an account speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    #[serde(rename = "anthropic")]
    Anthropic,
    #[serde(rename = "openai")]
    OpenAi,
}

impl Kind {
    /// Where this provider lives if the configuration does not say otherwise.
    pub fn default_base_url(self) -> &'static str {
        match self {
            Kind::Anthropic => "https://api.anthropic.com",
            Kind::OpenAi => "https://api.openai.com/v1",
        }
    }
}

/// One configured account of a provider.
#[derive(Clone, Debug)]
pub struct Account {
    /// Its name in the configuration and in every chunk it was given.
    pub name: String,
    pub kind: Kind,
    /// OpenAI's ends in `/v1`, Anthropic's does not.
    pub base_url: String,
    /// At least one. The first creates; all are tried for reading, so that keys can be rotated.
    pub api_keys: Vec<Secret>,
    /// A connection on which no byte moved for so long is dead.
    pub stall: Duration,
    /// How long an upload or a create may take to be answered once its last byte is sent.
    pub create_timeout: Duration,
}

impl Account {
    pub const DEFAULT_STALL: Duration = Duration::from_secs(15);
    pub const DEFAULT_CREATE_TIMEOUT: Duration = Duration::from_secs(600);

    /// The adapter of this account. A new provider is one folder and one line here. Makes no call.
    pub fn connect(&self) -> Result<Arc<dyn BatchProvider>, AccountError> {
        let provider: Arc<dyn BatchProvider> = match self.kind {
            Kind::Anthropic => Arc::new(Anthropic::new(Transport::new(self, &super::anthropic::DIALECT)?)),
            Kind::OpenAi => Arc::new(OpenAi::new(Transport::new(self, &super::openai::DIALECT)?)),
        };
        Ok(Arc::new(Measured(provider)))
    }

    /// The adapter of a server without a batch API; it may want no key, and what is at a bare host is under `/v1`.
    /// Makes no call.
    pub fn connect_online(&self) -> Result<Online, AccountError> {
        Online::new(self)
    }
}

/// An account that cannot be used as it is configured.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    #[error("provider {account}: no API key")]
    NoKey { account: String },
    #[error("provider {account}: API key {number} is empty, or holds what no header can carry")]
    UnusableKey { account: String, number: usize },
    #[error("provider {account}: base URL {url:?} is not a plain http or https URL")]
    BaseUrl { account: String, url: String },
    #[error("provider {account}: set up the HTTP client")]
    Client {
        account: String,
        #[source]
        source: reqwest::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(kind: Kind, base_url: &str, keys: &[&str]) -> Account {
        Account {
            name: "main".to_owned(),
            kind,
            base_url: base_url.to_owned(),
            api_keys: keys.iter().map(|key| Secret::new(*key)).collect(),
            stall: Account::DEFAULT_STALL,
            create_timeout: Account::DEFAULT_CREATE_TIMEOUT,
        }
    }

    #[test]
    fn every_kind_has_an_adapter_and_a_default_place() {
        for kind in [Kind::Anthropic, Kind::OpenAi] {
            let provider = account(kind, kind.default_base_url(), &["k"]).connect().unwrap();
            assert_eq!(provider.account(), "main");
        }
    }

    #[test]
    fn an_unusable_account_says_what_is_wrong_without_the_key() {
        let error = |account: Account| account.connect().err().unwrap().to_string();
        assert_eq!(error(account(Kind::OpenAi, "https://h/v1", &[])), "provider main: no API key");
        assert!(
            error(account(Kind::OpenAi, "https://h/v1", &["ok", "a\nb"]))
                .starts_with("provider main: API key 2 is empty")
        );
        assert!(error(account(Kind::Anthropic, "https://h", &[" "])).starts_with("provider main: API key 1 is empty"));
        for url in ["", "ftp://h", "https://h?x=1", "no url"] {
            assert!(error(account(Kind::OpenAi, url, &["k"])).contains("base URL"), "{url}");
        }
    }
}
