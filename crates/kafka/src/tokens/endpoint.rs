//! The token endpoint of `[kafka.oauth]`: the client credentials grant of OAuth 2.0.
//!
//! A response has at most [`ANSWER_BYTES_MAX`]. The client does not follow redirects, which could send the secret to another
//! host. No error contains a token or a secret.

use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use hyper::{Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use super::https;
use super::source::{self, Issued, Problem, TokenError, TokenSource};
use crate::options::{ClientAuthentication, OAuth};
use settings::secret::Secret;

const ANSWER_BYTES_MAX: usize = 64 * 1_024;
const LIFETIME_DEFAULT: Duration = Duration::from_secs(300);
/// The longest accepted lifetime, in case the endpoint returns a nonsensical number.
const LIFETIME_MOST: Duration = Duration::from_secs(24 * 3_600);

pub(super) struct Endpoint(pub(super) OAuth);

impl TokenSource for Endpoint {
    fn request(&self) -> Result<Issued, TokenError> {
        source::run(&*self.0.token_url, exchange(&self.0))
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
    let connector = https::connector(settings.ca_location.as_deref(), None)?;
    let client = Client::builder(TokioExecutor::new()).build(connector);
    let response = client.request(grant(settings, &secret)?).await;
    let response = response.map_err(|error| https::unanswered(&error, "[kafka.oauth] ca_location"))?;
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
}
