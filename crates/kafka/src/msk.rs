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

use crate::oauth::{connector, unanswered};
use crate::options::Aws;
use crate::tokens::{self, Issued, Problem, TokenError, TokenSource};
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
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::error::ErrorMetadata;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Request, Response, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use settings::secret::Secret;
use settings::text::percent_encode;
use std::error::Error;
use std::time::{Duration, SystemTime};
use std::{fmt, io};
use tracing::dispatcher::{self, Dispatch};

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
        dispatcher::with_default(&Dispatch::none(), || tokens::run(&"AWS", Box::pin(issue(&self.0))))
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
    Ok(Issued { token: sign(&credentials, &settings.region, now)?, lifetime })
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
    let own = provider.provide_credentials().await.map_err(|error| without_credentials(&error))?;
    lifetime(&own, SystemTime::now())?;
    let Some(role) = &settings.role_arn else { return Ok(own) };
    let mut assumed = AssumeRoleProvider::builder(role).session_name(&settings.role_session_name);
    if let Some(id) = &settings.external_id {
        assumed = assumed.external_id(id);
    }
    let assumed = Box::pin(assumed.configure(&config).build_from_provider(own)).await;
    assumed.provide_credentials().await.map_err(|error| without_role(role, &error))
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

#[derive(Debug)]
pub(super) struct AwsClient;

impl HttpClient for AwsClient {
    fn http_connector(&self, settings: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(Connector {
            connect_timeout: settings.connect_timeout().unwrap_or(CONNECT_TIMEOUT),
            read_timeout: settings.read_timeout().unwrap_or(READ_TIMEOUT),
        })
    }
}

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
        let limit = self.connect_timeout + self.read_timeout;
        let response = match tokio::time::timeout(limit, self.exchange(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(problem)) => return Err(ConnectorError::io(Unanswered { server, problem }.into())),
            Err(_) => {
                let problem = format!("no response within {limit:?}");
                return Err(ConnectorError::timeout(Unanswered { server, problem }.into()));
            }
        };
        HttpResponse::try_from(response).map_err(|error| ConnectorError::other(error.into(), None))
    }

    async fn exchange(self, request: Request<SdkBody>) -> Result<Response<SdkBody>, Problem> {
        let (head, body) = request.into_parts();
        let body = body.bytes().map(Bytes::copy_from_slice).ok_or("the request is a stream")?;
        let connector = connector(None, Some(self.connect_timeout))?;
        let client = Client::builder(TokioExecutor::new()).build(connector);
        let response = client.request(Request::from_parts(head, Full::new(body))).await;
        let response = response.map_err(|error| unanswered(&error, "the system's trust store"))?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        let body = body
            .map_err(|_| format!("its response was truncated or has more than {ANSWER_BYTES_MAX} bytes"))?;
        Ok(Response::from_parts(head, SdkBody::from(body.to_bytes())))
    }
}

/// Scheme, host and port, without the rest of the URL.
fn server(url: &Uri) -> String {
    let port = url.port_u16().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{}{port}", url.scheme_str().unwrap_or("http"), url.host().unwrap_or_default())
}

/// A server of AWS that did not answer.
#[derive(Debug)]
pub(super) struct Unanswered {
    server: String,
    problem: Problem,
}

impl fmt::Display for Unanswered {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "no answer from {}: {}", self.server, self.problem)
    }
}

impl Error for Unanswered {}

/// The end of messages about problems that only a look at the machine can explain.
const FIND_OUT: &str =
    "To find out why, run `aws sts get-caller-identity` as the user of the relay, in the same environment";
const HTTP_STATUS: &str = "Non-success status from HTTP credential provider: ";

/// The problem if the chain provides no credentials.
pub(super) fn without_credentials(error: &CredentialsError) -> Problem {
    if let CredentialsError::CredentialsNotLoaded(_) = error {
        return "no AWS credentials found: not in the environment, the profile files, a web identity, or the metadata of \
                the container or instance. Attach an IAM role to the instance, the task or the service account, or set \
                AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            .to_owned();
    }
    match refusal(error) {
        Some(refusal) => format!("STS did not issue the AWS credentials: {}", refusal.explained()),
        None => format!("the AWS credentials cannot be loaded: {}", cause(error, "their source")),
    }
}

/// The problem if STS does not let the relay assume the role.
pub(super) fn without_role(role: &str, error: &CredentialsError) -> Problem {
    match refusal(error) {
        Some(refusal) => format!("the role {role} cannot be assumed: {}", refusal.explained()),
        None => format!("the role {role} cannot be assumed: {}", cause(error, "STS")),
    }
}

/// An error that STS has returned.
struct NotSent {
    code: String,
    /// The user or role that STS has denied, by its ARN.
    who: Option<String>,
}

impl NotSent {
    fn of(error: &ErrorMetadata) -> Option<NotSent> {
        let code = error.code().filter(|code| is_code(code))?.to_owned();
        let words = error.message().unwrap_or_default().split_whitespace();
        let mut after_user = words.skip_while(|word| *word != "User:").skip(1);
        let who = after_user.next().filter(|who| is_arn(who)).map(str::to_owned);
        Some(NotSent { code, who })
    }

    fn explained(&self) -> String {
        let NotSent { code, who } = self;
        match code.as_str() {
            "AccessDenied" | "AccessDeniedException" => {
                let who = who.as_deref().unwrap_or("the relay");
                format!(
                    "STS denied the request from {who} ({code}). Allow sts:AssumeRole in the IAM policy of the relay, trust \
                     the relay in the trust policy of the role, and check [kafka.aws] external_id"
                )
            }
            "ExpiredToken" | "ExpiredTokenException" => {
                format!("the AWS credentials have expired ({code}). Renew them")
            }
            "InvalidClientTokenId" | "UnrecognizedClientException" => {
                format!("STS does not know the AWS access key ({code}). Check the AWS credentials")
            }
            "SignatureDoesNotMatch" | "RequestExpired" => {
                format!(
                    "STS rejected the signature ({code}). Check the AWS secret access key, and the clock of this host"
                )
            }
            "RegionDisabledException" => {
                format!(
                    "STS is not active in this region ({code}). Activate it in IAM, or check [kafka.aws] region"
                )
            }
            "ValidationError" => {
                format!(
                    "STS rejected the request ({code}). Check role_arn, role_session_name and external_id"
                )
            }
            "InvalidIdentityToken" | "InvalidIdentityTokenException" | "IDPRejectedClaim" => {
                format!(
                    "STS rejected the web identity token ({code}). Check the identity provider and the trust policy"
                )
            }
            code => format!("STS responded with {code}"),
        }
    }
}

/// The refusal among the causes of this error.
fn refusal(error: &CredentialsError) -> Option<NotSent> {
    causes(error).find_map(|cause| {
        let assumed = cause.downcast_ref::<AssumeRoleError>().map(AssumeRoleError::meta);
        let by_identity = || {
            let found = cause.downcast_ref::<AssumeRoleWithWebIdentityError>();
            found.map(AssumeRoleWithWebIdentityError::meta)
        };
        NotSent::of(assumed.or_else(by_identity)?)
    })
}

/// Another cause that may be shown. `source` is what should have provided the credentials.
fn cause(error: &CredentialsError, source: &str) -> String {
    let found = causes(error).find_map(|cause| {
        let unanswered = cause.downcast_ref::<Unanswered>();
        let unanswered =
            unanswered.map(|cause| format!("{cause}. Check [kafka.aws] region, DNS and the network"));
        let io = || {
            let error = cause.downcast_ref::<io::Error>()?;
            Some(format!("a file cannot be read: {error}. {FIND_OUT}"))
        };
        let status = || {
            let text = cause.to_string();
            let digits: String =
                text.strip_prefix(HTTP_STATUS)?.chars().filter(char::is_ascii_digit).collect();
            Some(format!("{source} responded with status {digits}. {FIND_OUT}"))
        };
        unanswered.or_else(io).or_else(status)
    });
    found.unwrap_or_else(|| match error {
        CredentialsError::InvalidConfiguration(_) => {
            format!("the profile files or the environment variables AWS_* are invalid. {FIND_OUT}")
        }
        CredentialsError::ProviderTimedOut(_) => format!("{source} did not answer in time. {FIND_OUT}"),
        _ => format!("{source} returned an error or no credentials. {FIND_OUT}"),
    })
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
pub(super) const VALID: Duration = Duration::from_secs(900);

const SERVICE: &str = "kafka-cluster";
const ACTION: &str = "Action=kafka-cluster%3AConnect";
/// Not part of the signature.
const USER_AGENT: &str = concat!("User-Agent=outbox-relay%2F", env!("CARGO_PKG_VERSION"));

pub(super) fn sign(credentials: &Credentials, region: &str, now: SystemTime) -> Result<Secret, Problem> {
    let url = format!("https://kafka.{region}.amazonaws.com/?{ACTION}");
    let signed = signed(&url, credentials, region, now);
    let url = signed.map_err(|error| format!("the token cannot be signed: {error}"))?;
    Ok(Secret::new(base64url(url.as_bytes())))
}

fn signed(
    url: &str,
    credentials: &Credentials,
    region: &str,
    now: SystemTime,
) -> Result<String, Box<dyn Error + Send + Sync>> {
    let mut settings = SigningSettings::default();
    settings.signature_location = SignatureLocation::QueryParams;
    settings.expires_in = Some(VALID);
    let identity = credentials.clone().into();
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region(region)
        .name(SERVICE)
        .time(now)
        .settings(settings)
        .build()?;
    let request = SignableRequest::new("GET", url, std::iter::empty(), SignableBody::empty())?;
    let (instructions, _) = sign_request(request, &params.into())?.into_parts();
    let params = instructions.params().iter();
    let params: String =
        params.map(|(name, value)| format!("&{name}={}", percent_encode(value, "-._~"))).collect();
    Ok(format!("{url}{params}&{USER_AGENT}"))
}

fn base64url(bytes: &[u8]) -> String {
    let encoded = openssl::base64::encode_block(bytes);
    encoded.trim_end_matches('=').replace('+', "-").replace('/', "_")
}

#[cfg(test)]
mod tests;
