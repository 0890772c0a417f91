//! Tokens of `[kafka.aws]`: URLs for `kafka-cluster:Connect` that are signed with AWS credentials (SigV4), in Base64. The signers
//! that AWS provides for other languages define the format.
//!
//! The credentials come from the usual chain of AWS: environment variables, profile files, web identity, and the metadata of
//! the container or the instance. Each token reads them again, so a change needs no restart. The AWS crates use the HTTP client
//! here, because their own would bring another TLS library with its own trust store. Each request has its own connection:
//! there are a few per token, and each token has its own runtime.
//!
//! The errors of the AWS crates quote responses, which can contain secrets. So only known causes are shown: a server that did
//! not answer, an error code of STS, a file that cannot be read, and settings that are invalid.

use crate::options::Aws;
use crate::tls::Https;
use crate::tokens::{self, Issued, Problem, TokenSource};
use aws_config::retry::RetryConfig;
use aws_config::sts::AssumeRoleProvider;
use aws_config::{BehaviorVersion, Region};
use aws_credential_types::Credentials;
use aws_credential_types::provider::ProvideCredentials as _;
use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_sts::operation::assume_role::AssumeRoleError;
use aws_sdk_sts::operation::assume_role_with_web_identity::AssumeRoleWithWebIdentityError;
use aws_sigv4::http_request::{
    SignableBody, SignableRequest, SignatureLocation, SigningSettings, sign as sign_request,
};
use aws_sigv4::sign::v4;
use aws_smithy_runtime_api::client::http::{
    HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::error::ErrorMetadata;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http_body_util::Full;
use hyper::Uri;
use hyper::body::Bytes;
use settings::secret::Secret;
use settings::text::percent_encode;
use std::error::Error;
use std::io;
use std::time::{Duration, SystemTime};
use tokio::time::timeout;
use tracing::dispatcher::{self, Dispatch};

/// Attempts of a request to STS, so that an error arrives before the time limit of the token. If it were not set, an invalid
/// AWS_MAX_ATTEMPTS would end the process.
const STS_ATTEMPTS: u32 = 2;
/// Credentials count as expired this long before their end.
const LEAST_LEFT: Duration = Duration::from_secs(5);
/// Those of AWS have up to a few thousand bytes.
const CREDENTIAL_BYTES_MAX: usize = 16 * 1_024;

pub(super) fn signer(settings: Aws) -> TokenSource {
    // The AWS crates log requests and errors, which can contain secrets, so nothing of them is logged.
    let request = move || {
        dispatcher::with_default(&Dispatch::none(), || tokens::run("AWS", Box::pin(issue(&settings))))
    };
    TokenSource {
        principal: "outbox-relay".to_owned(),
        remedy: "check [kafka.aws] and the AWS credentials",
        request: Box::new(request),
    }
}

async fn issue(settings: &Aws) -> Result<Issued, Problem> {
    let credentials = credentials(settings).await?;
    let now = SystemTime::now();
    let lifetime = lifetime(&credentials, now)?;
    let token = sign(&credentials, &settings.region, now);
    let token = token.map_err(|error| format!("the token cannot be signed: {error}"))?;
    Ok(Issued { token, lifetime })
}

/// The credentials of the environment or of the assumed role.
async fn credentials(settings: &Aws) -> Result<Credentials, Problem> {
    let region = Region::new(settings.region.clone());
    let loader = aws_config::defaults(BehaviorVersion::latest())
        .region(region)
        .http_client(http_client_fn(|settings, _| {
            SharedHttpConnector::new(Connector {
                connect_timeout: settings.connect_timeout().unwrap_or(CONNECT_TIMEOUT),
                read_timeout: settings.read_timeout().unwrap_or(READ_TIMEOUT),
            })
        }))
        .retry_config(RetryConfig::standard().with_max_attempts(STS_ATTEMPTS));
    let config = Box::pin(loader.load()).await;
    let provider =
        config.credentials_provider().ok_or_else(|| "there is no source of credentials".to_owned())?;
    let own = provider.provide_credentials().await.map_err(|error| without_credentials(&error))?;
    lifetime(&own, SystemTime::now())?;
    let Some(role) = &settings.role_arn else { return Ok(own) };
    let mut assumed = AssumeRoleProvider::builder(role).session_name(&settings.role_session_name);
    if let Some(id) = &settings.external_id {
        assumed = assumed.external_id(id);
    }
    let assumed = Box::pin(assumed.configure(&config).build_from_provider(own)).await;
    assumed.provide_credentials().await.map_err(|error| {
        let why = refusal(&error).unwrap_or_else(|| cause(&error, "STS"));
        format!("the role {role} cannot be assumed: {why}")
    })
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
    let Some(ends) = credentials.expiry() else { return Ok(VALID) };
    match ends.duration_since(now) {
        Ok(left) if left > LEAST_LEFT => Ok(left.min(VALID)),
        _ => Err("the AWS credentials have expired. Renew them, or use a source that renews them, such as the role of \
                  the instance or container"
            .to_owned()),
    }
}

const ANSWER_BYTES_MAX: usize = 256 * 1_024;
/// Limits for requests that have none.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const READ_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug)]
struct Connector {
    connect_timeout: Duration,
    /// For the whole exchange after the connection.
    read_timeout: Duration,
}

impl HttpConnector for Connector {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        HttpConnectorFuture::new(self.send(request))
    }
}

impl Connector {
    async fn send(self, request: HttpRequest) -> Result<HttpResponse, ConnectorError> {
        let request = request.try_into_http1x().map_err(|error| ConnectorError::user(error.into()))?;
        let server = server(request.uri());
        let body = request.body().bytes().map(Bytes::copy_from_slice);
        let body = body.ok_or_else(|| ConnectorError::user("the request is a stream".into()))?;
        let https = Https {
            ca_location: None,
            authorities: "the system's trust store",
            connect_timeout: Some(self.connect_timeout),
            bytes_max: ANSWER_BYTES_MAX,
        };
        let limit = self.connect_timeout + self.read_timeout;
        let response = match timeout(limit, https.send(request.map(|_| Full::new(body)))).await {
            Ok(Ok(response)) => response.map(SdkBody::from),
            Ok(Err(problem)) => return Err(ConnectorError::io(Unanswered { server, problem }.into())),
            Err(_) => {
                let problem = format!("no response within {limit:?}");
                return Err(ConnectorError::timeout(Unanswered { server, problem }.into()));
            }
        };
        HttpResponse::try_from(response).map_err(|error| ConnectorError::other(error.into(), None))
    }
}

/// Scheme, host and port, without the rest of the URL.
fn server(url: &Uri) -> String {
    let port = url.port_u16().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{}{port}", url.scheme_str().unwrap_or("http"), url.host().unwrap_or_default())
}

/// A server of AWS that did not answer.
#[derive(Debug, thiserror::Error)]
#[error("no answer from {server}: {problem}")]
struct Unanswered {
    server: String,
    problem: Problem,
}

/// The end of messages about problems that only a look at the machine can explain.
const FIND_OUT: &str =
    "To find out why, run `aws sts get-caller-identity` as the user of the relay, in the same environment";
const HTTP_STATUS: &str = "Non-success status from HTTP credential provider: ";

/// The problem if the chain provides no credentials.
fn without_credentials(error: &CredentialsError) -> Problem {
    if let CredentialsError::CredentialsNotLoaded(_) = error {
        return "no AWS credentials found: not in the environment, the profile files, a web identity, or the metadata of \
                the container or instance. Attach an IAM role to the instance, the task or the service account, or set \
                AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            .to_owned();
    }
    match refusal(error) {
        Some(refusal) => format!("STS did not issue the AWS credentials: {refusal}"),
        None => format!("the AWS credentials cannot be loaded: {}", cause(error, "their source")),
    }
}

/// The error that STS has returned, among the causes of this error.
fn refusal(error: &CredentialsError) -> Option<Problem> {
    causes(error).find_map(|cause| {
        let assumed = cause.downcast_ref::<AssumeRoleError>().map(AssumeRoleError::meta);
        let identified = cause.downcast_ref::<AssumeRoleWithWebIdentityError>();
        explained(assumed.or(identified.map(AssumeRoleWithWebIdentityError::meta))?)
    })
}

/// Error codes of STS, each with what it means and how to fix it.
const STS: [(&[&str], &str); 7] = [
    (
        &["AccessDenied", "AccessDeniedException"],
        "STS denied the request from {who} ({code}). Allow sts:AssumeRole in the IAM policy of the relay, trust the relay \
         in the trust policy of the role, and check [kafka.aws] external_id",
    ),
    (&["ExpiredToken", "ExpiredTokenException"], "the AWS credentials have expired ({code}). Renew them"),
    (
        &["InvalidClientTokenId", "UnrecognizedClientException"],
        "STS does not know the AWS access key ({code}). Check the AWS credentials",
    ),
    (
        &["SignatureDoesNotMatch", "RequestExpired"],
        "STS rejected the signature ({code}). Check the AWS secret access key, and the clock of this host",
    ),
    (
        &["RegionDisabledException"],
        "STS is not active in this region ({code}). Activate it in IAM, or check [kafka.aws] region",
    ),
    (
        &["ValidationError"],
        "STS rejected the request ({code}). Check role_arn, role_session_name and external_id",
    ),
    (
        &["InvalidIdentityToken", "InvalidIdentityTokenException", "IDPRejectedClaim"],
        "STS rejected the web identity token ({code}). Check the identity provider and the trust policy",
    ),
];

fn explained(error: &ErrorMetadata) -> Option<Problem> {
    let code = error.code().filter(|code| is_code(code))?;
    // The user or role that STS has denied, by its ARN.
    let mut words = error.message().unwrap_or_default().split_whitespace();
    let who = words.find(|word| *word == "User:").and_then(|_| words.next()).filter(|who| is_arn(who));
    let known = STS.iter().find(|(codes, _)| codes.contains(&code)).map(|(_, text)| *text);
    let text = known.unwrap_or("STS responded with {code}");
    Some(text.replace("{who}", who.unwrap_or("the relay")).replace("{code}", code))
}

/// Another cause that may be shown. `source` is what should have provided the credentials.
fn cause(error: &CredentialsError, source: &str) -> String {
    for cause in causes(error) {
        if let Some(unanswered) = cause.downcast_ref::<Unanswered>() {
            return format!("{unanswered}. Check [kafka.aws] region, DNS and the network");
        }
        if let Some(error) = cause.downcast_ref::<io::Error>() {
            return format!("a file cannot be read: {error}. {FIND_OUT}");
        }
        if let Some(status) = cause.to_string().strip_prefix(HTTP_STATUS) {
            let digits: String = status.chars().filter(char::is_ascii_digit).collect();
            return format!("{source} responded with status {digits}. {FIND_OUT}");
        }
    }
    match error {
        CredentialsError::InvalidConfiguration(_) => {
            format!("the profile files or the environment variables AWS_* are invalid. {FIND_OUT}")
        }
        CredentialsError::ProviderTimedOut(_) => format!("{source} did not answer in time. {FIND_OUT}"),
        _ => format!("{source} returned an error or no credentials. {FIND_OUT}"),
    }
}

/// The error itself, and its sources.
fn causes<'a>(error: &'a CredentialsError) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let first: &'a (dyn Error + 'static) = error;
    std::iter::successors(Some(first), |cause: &&'a (dyn Error + 'static)| (*cause).source())
}

/// Whether this looks like a code. Anything else could contain a secret.
fn is_code(text: &str) -> bool {
    (1..=40).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphabetic())
}

fn is_arn(text: &str) -> bool {
    text.len() <= 300
        && text.starts_with("arn:")
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b":/_+=,.@-".contains(&byte))
}

/// How long brokers accept a token.
const VALID: Duration = Duration::from_secs(900);

/// Not part of the signature.
const USER_AGENT: &str = concat!("User-Agent=outbox-relay%2F", env!("CARGO_PKG_VERSION"));

fn sign(
    credentials: &Credentials,
    region: &str,
    now: SystemTime,
) -> Result<Secret, Box<dyn Error + Send + Sync>> {
    let url = format!("https://kafka.{region}.amazonaws.com/?Action=kafka-cluster%3AConnect");
    let mut settings = SigningSettings::default();
    settings.signature_location = SignatureLocation::QueryParams;
    settings.expires_in = Some(VALID);
    let identity = credentials.clone().into();
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region(region)
        .name("kafka-cluster")
        .time(now)
        .settings(settings)
        .build()?;
    let request = SignableRequest::new("GET", &url, std::iter::empty(), SignableBody::empty())?;
    let (instructions, _) = sign_request(request, &params.into())?.into_parts();
    let params = instructions.params().iter();
    let params: String =
        params.map(|(name, value)| format!("&{name}={}", percent_encode(value, "-._~"))).collect();
    Ok(Secret::new(URL_SAFE_NO_PAD.encode(format!("{url}{params}&{USER_AGENT}"))))
}

#[cfg(test)]
mod tests;
