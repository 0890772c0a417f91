//! What provides tokens. There is one implementation for each way to get one.

use std::fmt;
use std::time::Duration;

use tokio::runtime;

use settings::secret::Secret;

/// The limit for one request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Issues tokens. Reads secrets again for each one.
pub(super) trait TokenSource: Send + Sync {
    /// A new token. Blocks the thread for at most [`TIMEOUT`].
    fn request(&self) -> Result<Issued, TokenError>;

    /// The user's name in librdkafka. Brokers read the name from the token.
    fn principal(&self) -> &str;

    /// What to check if there is no token.
    fn remedy(&self) -> &'static str;
}

pub(super) struct Issued {
    pub(super) token: Secret,
    /// Counts from the time of the request.
    pub(super) lifetime: Duration,
}

/// Why there is no token. It contains no token and no secret.
#[derive(Clone, Debug, thiserror::Error)]
#[error("no token from {origin}: {problem}")]
pub(crate) struct TokenError {
    origin: String,
    problem: Problem,
}

/// What is wrong, as the end of a sentence, with a remedy.
pub(super) type Problem = String;

/// Runs a request on this thread, for at most [`TIMEOUT`].
pub(super) fn run(
    origin: &dyn fmt::Display,
    request: impl Future<Output = Result<Issued, Problem>>,
) -> Result<Issued, TokenError> {
    let issued = match runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => {
            let answer = runtime.block_on(async { tokio::time::timeout(TIMEOUT, request).await });
            runtime.shutdown_background(); // a name may still be resolving
            answer.unwrap_or_else(|_| Err(format!("no response within {TIMEOUT:?}")))
        }
        Err(error) => Err(error.to_string()),
    };
    issued.map_err(|problem| TokenError { origin: origin.to_string(), problem })
}
