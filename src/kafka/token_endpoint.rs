//! Asks the token endpoint of `[kafka.oauth]` for a token: the client credentials grant of OAuth 2.0, over HTTP/1.1.
//!
//! One request has [`TIMEOUT`] for everything and reads at most [`ANSWER_BYTES_MAX`]. No redirect is followed, since that
//! would hand the secret to somebody else. Nothing of a token or a secret is in an error.

use std::pin::Pin;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use openssl::ssl::{SslConnector, SslMethod, SslVersion};
use openssl::x509::X509VerifyResult;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime;
use tokio_openssl::SslStream;

use crate::certificates;
use crate::config::{ClientAuthentication, OAuth, Secret};

const TIMEOUT: Duration = Duration::from_secs(10);
const ANSWER_BYTES_MAX: usize = 64 * 1_024;
/// What holds when the endpoint does not say how long its token is good.
const LIFETIME_UNSAID: Duration = Duration::from_secs(300);
/// Longer is not believed, so that a nonsensical number does no harm.
const LIFETIME_MOST: Duration = Duration::from_secs(24 * 3_600);

/// A token as it was issued.
pub(super) struct Issued {
    pub(super) token: Secret,
    /// From when it was asked for.
    pub(super) lifetime: Duration,
}

/// Why there is none.
#[derive(Clone, Debug, thiserror::Error)]
#[error("no token from {endpoint}: {problem}")]
pub(super) struct TokenError {
    endpoint: String,
    problem: String,
}

/// What is wrong, as the end of a sentence, with what to do about it.
type Problem = String;

/// Asks for a token, and blocks the thread meanwhile: at most for [`TIMEOUT`]. The secret is read anew.
pub(super) fn ask(settings: &OAuth) -> Result<Issued, TokenError> {
    let asked = match runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => {
            let answer = runtime.block_on(async { tokio::time::timeout(TIMEOUT, request(settings)).await });
            runtime.shutdown_background(); // the resolver of names may still be at it
            answer.unwrap_or_else(|_| Err(format!("no response within {TIMEOUT:?}")))
        }
        Err(error) => Err(error.to_string()),
    };
    asked.map_err(|problem| TokenError { endpoint: settings.token_url.to_string(), problem })
}

async fn request(settings: &OAuth) -> Result<Issued, Problem> {
    let url = &settings.token_url;
    let secret = settings
        .client_secret
        .read()
        .map_err(|error| format!("the client secret cannot be read: {error}"))?;
    let request = grant(settings, &secret)?;
    let host = url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let is_tls = url.scheme_str() == Some("https");
    let port = url.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let stream =
        TcpStream::connect((host, port)).await.map_err(|error| format!("it is unreachable: {error}"))?;
    let (status, body) = if is_tls {
        exchange(secured(settings, host, stream).await?, request).await?
    } else {
        exchange(stream, request).await?
    };
    read(status, &body)
}

/// The request of RFC 6749, 4.4.2.
fn grant(settings: &OAuth, secret: &Secret) -> Result<Request<Full<Bytes>>, Problem> {
    let url = &settings.token_url;
    let mut form = vec![("grant_type", "client_credentials")];
    form.extend(settings.scope.as_deref().map(|scope| ("scope", scope)));
    form.extend(settings.audience.as_deref().map(|audience| ("audience", audience)));
    let mut request = Request::post(url.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string))
        .header(HOST, url.authority().map(ToString::to_string).unwrap_or_default())
        .header(ACCEPT, "application/json")
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
        .header(CONNECTION, "close");
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
    // The error would name no more than a header that cannot be sent.
    request
        .body(Full::from(body.join("&")))
        .map_err(|_| "client_id or client_secret cannot be sent".to_owned())
}

async fn secured(settings: &OAuth, host: &str, stream: TcpStream) -> Result<SslStream<TcpStream>, Problem> {
    let unusable = |error: &dyn std::fmt::Display| format!("TLS cannot be set up: {error}");
    let mut builder = SslConnector::builder(SslMethod::tls_client()).map_err(|error| unusable(&error))?;
    builder.set_min_proto_version(Some(SslVersion::TLS1_2)).map_err(|error| unusable(&error))?;
    if let Some(path) = &settings.ca_location {
        let trusted = certificates::authorities(path);
        let trusted =
            trusted.map_err(|error| format!("ca_location: {} is invalid: {error}", path.display()))?;
        builder.set_cert_store(trusted);
    }
    let ssl = builder
        .build()
        .configure()
        .and_then(|connect| connect.into_ssl(host))
        .map_err(|error| unusable(&error))?;
    let mut stream = SslStream::new(ssl, stream).map_err(|error| unusable(&error))?;
    if let Err(error) = Pin::new(&mut stream).connect().await {
        let mut text = format!("no secure connection: {error}");
        let verdict = stream.ssl().verify_result();
        if verdict != X509VerifyResult::OK {
            text.push_str(&format!(": {}", verdict.error_string()));
        }
        if let Some(remedy) = certificates::remedy(&text) {
            text.push_str(&format!(". Fix: {remedy} ([kafka.oauth] ca_location)"));
        }
        return Err(text);
    }
    Ok(stream)
}

async fn exchange<S>(stream: S, request: Request<Full<Bytes>>) -> Result<(StatusCode, Bytes), Problem>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let broken = |error: hyper::Error| format!("it sent an invalid HTTP response: {error}");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let answer = async move {
        let response = sender.send_request(request).await.map_err(broken)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body
            .map_err(|_| format!("its response was truncated or has more than {ANSWER_BYTES_MAX} bytes"))?;
        Ok::<_, Problem>((status, body.to_bytes()))
    };
    // The connection ends by itself when the answer is there; an error of it is the answer's, too.
    futures_util::join!(answer, connection).0
}

fn read(status: StatusCode, body: &[u8]) -> Result<Issued, Problem> {
    let json: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    if status.is_redirection() {
        return Err(format!(
            "it responded with {status}. Redirects are not followed: set token_url to the endpoint itself"
        ));
    }
    if status != StatusCode::OK {
        let said = json["error"].as_str().filter(|code| is_error_code(code));
        return Err(match said {
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
    // Some providers write the number as a text.
    let seconds = json["expires_in"].as_u64().or_else(|| json["expires_in"].as_str()?.parse().ok());
    let lifetime = seconds.map_or(LIFETIME_UNSAID, Duration::from_secs).min(LIFETIME_MOST);
    if lifetime.is_zero() {
        return Err("its token expires immediately (expires_in is 0)".to_owned());
    }
    Ok(Issued { token: Secret::new(token), lifetime })
}

/// The codes of RFC 6749 look like this; anything else could be a piece of a secret.
fn is_error_code(text: &str) -> bool {
    text.len() <= 40 && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

/// `application/x-www-form-urlencoded`.
fn form_encode(text: &str) -> String {
    let keep = |byte: u8| byte.is_ascii_alphanumeric() || b"-._*".contains(&byte);
    text.bytes()
        .map(|byte| if keep(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(status: u16, body: &str) -> String {
        read(StatusCode::from_u16(status).unwrap(), body.as_bytes()).err().unwrap()
    }

    #[test]
    fn a_token_has_the_lifetime_that_the_endpoint_says() {
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
    fn an_answer_that_is_no_token_says_what_to_do_and_quotes_nothing() {
        assert!(
            problem(401, r#"{"error": "invalid_client"}"#)
                .ends_with("look at client_id and the client secret")
        );
        assert!(problem(400, r#"{"error": "invalid_scope"}"#).ends_with("look at scope"));
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
    fn what_is_special_in_a_form_is_encoded() {
        assert_eq!(form_encode("a b&c=d/é*"), "a%20b%26c%3Dd%2F%C3%A9*");
    }
}
