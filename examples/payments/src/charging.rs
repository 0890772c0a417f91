//! The call to the payment provider. While its outcome is unknown, it is retried with the same key.

use std::time::Duration;

use pg_idempotency::retry::{Classify, Failure, Policy, Verdict};
use thiserror::Error;

use crate::provider::{Charge, ChargeRequest};

/// The timeout of one attempt. The provider may still have charged.
const ANSWER_WITHIN: Duration = Duration::from_millis(800);
/// No attempt begins later. Both times together must be shorter than the lock on the request.
const ATTEMPTS_WITHIN: Duration = Duration::from_millis(800);
const ATTEMPTS_MAX: u32 = 3;

/// The reason why there is no definite answer from the provider.
#[derive(Debug, Error)]
pub enum NoAnswer {
    #[error("the provider did not answer")]
    Lost(#[source] reqwest::Error),
    #[error("the provider answered {0}")]
    Status(reqwest::StatusCode),
}

impl Classify for NoAnswer {
    fn verdict(&self) -> Verdict {
        match self {
            NoAnswer::Lost(error) if error.is_connect() => Verdict::Again,
            NoAnswer::Lost(_) => Verdict::Unknown,
            NoAnswer::Status(status) if status.is_server_error() => Verdict::Unknown,
            NoAnswer::Status(_) => Verdict::Final,
        }
    }
}

/// Access to the provider.
#[derive(Clone)]
pub struct Provider {
    http: reqwest::Client,
    url: String,
}

impl Provider {
    pub fn new(url: &str) -> anyhow::Result<Provider> {
        let http = reqwest::Client::builder().timeout(ANSWER_WITHIN).build()?;
        Ok(Provider { http, url: format!("{url}/charges") })
    }

    /// Charges once for this key, however often it is called. Without an answer, it is unknown whether the provider
    /// charged.
    pub async fn charge(&self, key: &str, request: &ChargeRequest) -> Result<Charge, Failure<NoAnswer>> {
        let policy = Policy::default().attempts_max(ATTEMPTS_MAX).within(ATTEMPTS_WITHIN);
        policy.keyed(key).run(|key| self.ask(key, request)).await
    }

    async fn ask(&self, key: &str, request: &ChargeRequest) -> Result<Charge, NoAnswer> {
        let sent = self.http.post(&self.url).header("idempotency-key", key).json(request).send().await;
        let answer = sent.map_err(NoAnswer::Lost)?;
        if !answer.status().is_success() {
            return Err(NoAnswer::Status(answer.status()));
        }
        answer.json().await.map_err(NoAnswer::Lost)
    }
}
