//! The token endpoint of `[kafka.oauth]`: the client credentials grant of OAuth 2.0, over TCP or over TLS with verified
//! certificates, without a proxy.
//!
//! A response has at most [`ANSWER_BYTES_MAX`]. The client does not follow redirects, which could send the secret to another
//! host. No error contains a token or a secret.

use crate::options::{ClientAuthentication, OAuth};
use crate::tokens::{self, Issued, Problem, TokenError, TokenSource};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use hyper::{Request, StatusCode, Uri};
use hyper_openssl::client::legacy::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use openssl::error::ErrorStack;
use openssl::ssl::{self, ConnectConfiguration, SslConnector, SslMethod, SslVersion};
use openssl::x509::X509;
use openssl::x509::store::{X509Store, X509StoreBuilder};
use settings::certificates;
use settings::secret::Secret;
use settings::text::percent_encode;
use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

const ANSWER_BYTES_MAX: usize = 64 * 1_024;
const LIFETIME_DEFAULT: Duration = Duration::from_secs(300);
/// The longest accepted lifetime, in case the endpoint returns a nonsensical number.
const LIFETIME_MOST: Duration = Duration::from_secs(24 * 3_600);

pub(super) struct Endpoint(pub(super) OAuth);

impl TokenSource for Endpoint {
    fn request(&self) -> Result<Issued, TokenError> {
        tokens::run(&*self.0.token_url, exchange(&self.0))
    }

    fn principal(&self) -> &str {
        &self.0.client_id
    }

    fn remedy(&self) -> &'static str {
        "check [kafka.oauth] and the identity provider"
    }
}

async fn exchange(settings: &OAuth) -> Result<Issued, Problem> {
    let secret = settings
        .client_secret
        .read()
        .map_err(|error| format!("the client secret cannot be read: {error}"))?;
    let connector = connector(settings.ca_location.as_deref(), None)?;
    let client = Client::builder(TokioExecutor::new()).build(connector);
    let response = client.request(grant(settings, &secret)?).await;
    let response = response.map_err(|error| unanswered(&error, "[kafka.oauth] ca_location"))?;
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
    let body =
        body.map_err(|_| format!("its response was truncated or has more than {ANSWER_BYTES_MAX} bytes"))?;
    read(status, &body.to_bytes())
}

/// The request of RFC 6749, 4.4.2.
fn grant(settings: &OAuth, secret: &Secret) -> Result<Request<Full<Bytes>>, Problem> {
    let mut form = vec![("grant_type", "client_credentials")];
    form.extend(settings.scope.as_deref().map(|scope| ("scope", scope)));
    form.extend(settings.audience.as_deref().map(|audience| ("audience", audience)));
    let mut request = Request::post(&*settings.token_url)
        .header(ACCEPT, "application/json")
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
    let id = settings.client_id.as_str();
    match settings.client_authentication {
        ClientAuthentication::Basic => {
            let pair = format!("{}:{}", form_encode(id), form_encode(secret.expose()));
            let encoded = openssl::base64::encode_block(pair.as_bytes());
            request = request.header(AUTHORIZATION, format!("Basic {encoded}"));
        }
        ClientAuthentication::Post => form.extend([("client_id", id), ("client_secret", secret.expose())]),
    }
    let body: Vec<String> = form.iter().map(|(key, value)| format!("{key}={}", form_encode(value))).collect();
    request
        .body(Full::from(body.join("&")))
        .map_err(|_| "client_id or client_secret cannot be sent".to_owned())
}

fn read(status: StatusCode, body: &[u8]) -> Result<Issued, Problem> {
    let json: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    if status.is_redirection() {
        return Err(format!(
            "it responded with {status}. Redirects are not followed: set token_url to the endpoint itself"
        ));
    }
    if status != StatusCode::OK {
        let code = json["error"].as_str().filter(|code| is_error_code(code));
        return Err(match code {
            Some("invalid_client" | "unauthorized_client") => {
                format!("it responded with {status}, invalid_client. Check client_id and the client secret")
            }
            Some("invalid_scope") => format!("it responded with {status}, invalid_scope. Check scope"),
            Some(code) => format!("it responded with {status}, {code}"),
            None => format!("it responded with {status}"),
        });
    }
    let token = json["access_token"].as_str().unwrap_or_default();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("it responded with 200 OK, but without a valid access_token. Check whether it is a token endpoint"
            .to_owned());
    }
    // Some providers write the number as a string.
    let seconds = json["expires_in"].as_u64().or_else(|| json["expires_in"].as_str()?.parse().ok());
    let lifetime = seconds.map_or(LIFETIME_DEFAULT, Duration::from_secs).min(LIFETIME_MOST);
    if lifetime.is_zero() {
        return Err("its token expires immediately (expires_in is 0)".to_owned());
    }
    Ok(Issued { token: Secret::new(token), lifetime })
}

/// Whether this looks like a code of RFC 6749. Anything else could contain a secret.
fn is_error_code(text: &str) -> bool {
    text.len() <= 40 && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

/// `application/x-www-form-urlencoded`.
fn form_encode(text: &str) -> String {
    percent_encode(text, "-._*")
}

/// Connects with TCP, and with TLS if the URL is `https`. Trusts the authorities in the file or, without one, those of the
/// system.
pub(super) fn connector(
    ca_location: Option<&Path>,
    connect_timeout: Option<Duration>,
) -> Result<HttpsConnector<HttpConnector>, Problem> {
    let unusable = |error: ErrorStack| format!("TLS cannot be set up: {error}");
    let mut tls = SslConnector::builder(SslMethod::tls_client()).map_err(unusable)?;
    tls.set_min_proto_version(Some(SslVersion::TLS1_2)).map_err(unusable)?;
    if let Some(path) = ca_location {
        let trusted = authorities(path);
        let trusted =
            trusted.map_err(|error| format!("ca_location: {} is invalid: {error}", path.display()))?;
        tls.set_cert_store(trusted);
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(connect_timeout);
    let mut connector = HttpsConnector::with_connector(tcp, tls).map_err(unusable)?;
    connector.set_callback(verify_ipv6);
    Ok(connector)
}

/// Trusts only the certificate authorities in a file. An error never contains the content of the file.
pub(crate) fn authorities(path: &Path) -> io::Result<X509Store> {
    trusting(&std::fs::read(path)?)
}

/// Like [`authorities`], but reads the certificates from a string.
pub(crate) fn trusting(pem: &[u8]) -> io::Result<X509Store> {
    let none = || io::Error::new(io::ErrorKind::InvalidData, "it contains no PEM certificate");
    let certificates = X509::stack_from_pem(pem).ok().filter(|found| !found.is_empty()).ok_or_else(none)?;
    let mut store = X509StoreBuilder::new()?;
    for certificate in certificates {
        store.add_cert(certificate)?;
    }
    Ok(store.build())
}

/// Works around the connector, which treats the brackets of an IPv6 address as part of the name.
fn verify_ipv6(tls: &mut ConnectConfiguration, endpoint: &Uri) -> Result<(), ErrorStack> {
    let address = endpoint.host().and_then(|host| host.strip_prefix('[')?.strip_suffix(']'));
    if let Some(address) = address.and_then(|address| address.parse::<IpAddr>().ok()) {
        tls.set_use_server_name_indication(false);
        tls.set_verify_hostname(false);
        tls.param_mut().set_ip(address)?;
    }
    Ok(())
}

/// Why there was no answer. The errors of the HTTP client are general; their sources have the cause. `authorities` names the
/// place of the trusted authorities.
pub(super) fn unanswered(error: &hyper_util::client::legacy::Error, authorities: &str) -> Problem {
    let mut cause: &dyn Error = error;
    while let Some(source) = cause.source() {
        if source.downcast_ref::<ssl::Error>().is_some() {
            return insecure(&cause.to_string(), authorities); // includes why a certificate was refused
        }
        cause = source;
    }
    if error.is_connect() {
        format!("it is unreachable: {cause}")
    } else {
        format!("it sent an invalid HTTP response: {cause}")
    }
}

fn insecure(error: &str, authorities: &str) -> Problem {
    let text = format!("TLS connection failed: {error}");
    match certificates::remedy(&text) {
        Some(remedy) => format!("{text}. Fix: {remedy} ({authorities})"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(status: u16, body: &str) -> String {
        read(StatusCode::from_u16(status).unwrap(), body.as_bytes()).err().unwrap()
    }

    #[test]
    fn a_token_has_the_lifetime_that_the_endpoint_returns() {
        for (body, seconds) in [
            (r#"{"access_token": "a.b-c", "expires_in": 60}"#, 60),
            (r#"{"access_token": "a.b-c", "expires_in": "60"}"#, 60),
            (r#"{"access_token": "a.b-c"}"#, 300),
            (r#"{"access_token": "a.b-c", "expires_in": 99999999999}"#, 24 * 3_600),
        ] {
            let issued = read(StatusCode::OK, body.as_bytes()).ok().unwrap();
            assert_eq!(issued.token.expose(), "a.b-c");
            assert_eq!(issued.lifetime.as_secs(), seconds, "{body}");
        }
    }

    #[test]
    fn an_answer_without_a_token_fails_with_a_remedy_and_without_its_content() {
        assert!(
            problem(401, r#"{"error": "invalid_client"}"#).ends_with("Check client_id and the client secret")
        );
        assert!(problem(400, r#"{"error": "invalid_scope"}"#).ends_with("Check scope"));
        assert!(problem(302, "").contains("token_url"));
        for (status, body) in [
            (401, r#"{"error": "HUNTER2"}"#),
            (500, "HUNTER2"),
            (200, "HUNTER2"),
            (200, r#"{"access_token": "HUNTER2\u0000"}"#),
            (200, r#"{"access_token": "HUNTER2", "expires_in": 0}"#),
        ] {
            let problem = problem(status, body);
            assert!(!problem.contains("HUNTER2") && problem.starts_with("it"), "{problem}");
        }
    }

    #[test]
    fn special_characters_in_a_form_are_encoded() {
        assert_eq!(form_encode("a b&c=d/é*"), "a%20b%26c%3Dd%2F%C3%A9*");
    }

    #[test]
    fn a_file_without_a_certificate_is_an_error() {
        assert!(trusting(b"-----BEGIN NOTHING-----").is_err());
        assert!(authorities(Path::new("/absent/ca.pem")).is_err());
    }
}
