//! Tokens of `[kafka.aws]`: URLs that are signed with AWS credentials, as Amazon MSK requires.
//!
//! The credentials come from the usual chain of AWS: environment variables, profile files, web identity, and the metadata of
//! the container or the instance. Each token reads them again, so a change needs no restart.

mod client;
mod errors;
#[cfg(test)]
mod tests;
mod token;

use std::time::{Duration, SystemTime};

use aws_config::retry::RetryConfig;
use aws_config::sts::AssumeRoleProvider;
use aws_config::{BehaviorVersion, Region};
use aws_credential_types::Credentials;
use aws_credential_types::provider::ProvideCredentials as _;
use tracing::dispatcher::{self, Dispatch};

use self::client::AwsClient;
use super::source::{self, Issued, Problem, TokenError, TokenSource};
use crate::options::Aws;

/// Attempts of a request to STS, so that an error arrives before the time limit of the token. If it were not set, an invalid
/// AWS_MAX_ATTEMPTS would end the process.
const STS_ATTEMPTS: u32 = 2;
/// Credentials count as expired this long before their end.
const LEAST_LEFT: Duration = Duration::from_secs(5);
/// Those of AWS have up to a few thousand bytes.
const CREDENTIAL_BYTES_MAX: usize = 16 * 1_024;

pub(super) struct Signer(pub(super) Aws);

impl TokenSource for Signer {
    /// The AWS crates log requests and errors, which can contain secrets, so nothing of them is logged.
    fn request(&self) -> Result<Issued, TokenError> {
        dispatcher::with_default(&Dispatch::none(), || source::run(&"AWS", Box::pin(issue(&self.0))))
    }

    fn principal(&self) -> &str {
        "outbox-relay"
    }

    fn remedy(&self) -> &'static str {
        "check [kafka.aws] and the AWS credentials"
    }
}

async fn issue(settings: &Aws) -> Result<Issued, Problem> {
    let credentials = credentials(settings).await?;
    let now = SystemTime::now();
    let lifetime = lifetime(&credentials, now)?;
    Ok(Issued { token: token::sign(&credentials, &settings.region, now)?, lifetime })
}

/// The credentials of the environment or of the assumed role.
async fn credentials(settings: &Aws) -> Result<Credentials, Problem> {
    let region = Region::new(settings.region.clone());
    let loader = aws_config::defaults(BehaviorVersion::latest())
        .region(region)
        .http_client(AwsClient)
        .retry_config(RetryConfig::standard().with_max_attempts(STS_ATTEMPTS));
    let config = Box::pin(loader.load()).await;
    let provider =
        config.credentials_provider().ok_or_else(|| "there is no source of credentials".to_owned())?;
    let own = provider.provide_credentials().await.map_err(|error| errors::without_credentials(&error))?;
    lifetime(&own, SystemTime::now())?;
    let Some(role) = &settings.role_arn else { return Ok(own) };
    let mut assumed = AssumeRoleProvider::builder(role).session_name(&settings.role_session_name);
    if let Some(id) = &settings.external_id {
        assumed = assumed.external_id(id);
    }
    let assumed = Box::pin(assumed.configure(&config).build_from_provider(own)).await;
    assumed.provide_credentials().await.map_err(|error| errors::without_role(role, &error))
}

/// How long brokers accept a token that is signed now with these credentials.
fn lifetime(credentials: &Credentials, now: SystemTime) -> Result<Duration, Problem> {
    let session = credentials.session_token().unwrap_or_default();
    // In a header, other characters would end the process in the AWS crates.
    let is_valid = |text: &str| {
        text.len() <= CREDENTIAL_BYTES_MAX && text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
    };
    if ![credentials.access_key_id(), credentials.secret_access_key(), session].into_iter().all(is_valid) {
        return Err(
            "the AWS credentials contain invalid characters or are too long. Set them again".to_owned()
        );
    }
    let Some(ends) = credentials.expiry() else { return Ok(token::VALID) };
    match ends.duration_since(now) {
        Ok(left) if left > LEAST_LEFT => Ok(left.min(token::VALID)),
        _ => Err("the AWS credentials have expired. Renew them, or use a source that renews them, such as the role of \
                  the instance or container"
            .to_owned()),
    }
}
