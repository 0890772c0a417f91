//! The token: a URL for `kafka-cluster:Connect`, signed in its query (SigV4), in Base64. The signers that AWS provides for other
//! languages define the format.

use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{
    SignableBody, SignableRequest, SignatureLocation, SigningSettings, sign as sign_request,
};
use aws_sigv4::sign::v4;

use super::Problem;
use settings::secret::Secret;

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
) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
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
    let params: String = params.map(|(name, value)| format!("&{name}={}", percent_encode(value))).collect();
    Ok(format!("{url}{params}&{USER_AGENT}"))
}

fn percent_encode(text: &str) -> String {
    let keep = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| if keep(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn base64url(bytes: &[u8]) -> String {
    let encoded = openssl::base64::encode_block(bytes);
    encoded.trim_end_matches('=').replace('+', "-").replace('/', "_")
}
