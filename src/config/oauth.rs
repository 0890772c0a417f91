//! `[kafka.oauth]`: where tokens come from that log in to Kafka.

use std::net::IpAddr;
use std::path::PathBuf;

use hyper::Uri;

use super::findings::{Place, Problem};
use super::reader::Reader;
use super::secret::SecretSource;

const SECTION: &str = "kafka.oauth";

/// `[kafka.oauth]`: how a token is asked for, with the client credentials grant of OAuth 2.0 (RFC 6749, 4.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OAuth {
    /// The token endpoint: `https`, or `http` on this host.
    pub token_url: Uri,
    /// Who the relay is there.
    pub client_id: String,
    /// The secret of this client, read anew for each token.
    pub client_secret: SecretSource,
    /// How the two are sent.
    pub client_authentication: ClientAuthentication,
    /// The scopes to ask for.
    pub scope: Option<String>,
    /// The audience to ask for.
    pub audience: Option<String>,
    /// The certificate authorities that may sign for the endpoint; `None` means those of the system.
    pub ca_location: Option<PathBuf>,
}

/// How the client's id and secret are sent (RFC 6749, 2.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuthentication {
    /// In the header `Authorization`.
    Basic,
    /// In the body.
    Post,
}

impl OAuth {
    /// Where the section is in use; `None` when it is not.
    pub(super) fn place(reader: &Reader) -> Option<Place> {
        let keys = [
            "token_url",
            "client_id",
            "client_secret",
            "client_secret_file",
            "scope",
            "audience",
            "ca_location",
        ];
        keys.into_iter().find_map(|key| reader.place(SECTION, key))
    }

    /// `None` when the section is not in use, or cannot be used.
    pub(super) fn from(reader: &mut Reader) -> Option<OAuth> {
        let token_url = reader.text(SECTION, "token_url");
        let client_id = reader.text(SECTION, "client_id");
        let client_secret = reader.secret(SECTION, "client_secret");
        let client_authentication = match reader.text(SECTION, "client_authentication").as_deref() {
            Some("post") => ClientAuthentication::Post,
            _ => ClientAuthentication::Basic,
        };
        let scope = reader.text(SECTION, "scope");
        let audience = reader.text(SECTION, "audience");
        let ca_location = ca_location(reader);
        let anywhere = OAuth::place(reader)?;
        let given = |key| reader.place(SECTION, key).is_some();
        let missing = [
            (token_url.is_some(), "token_url"),
            (client_id.is_some(), "client_id"),
            (given("client_secret") || given("client_secret_file"), "client_secret or client_secret_file"),
        ];
        let whole = reader.whole;
        for (_, key) in missing.into_iter().filter(|(given, _)| !given && whole) {
            let message = format!("[kafka.oauth] {key} is missing");
            let help =
                "a token needs token_url, client_id and client_secret_file; without them, remove the section";
            reader.findings.error(&anywhere, Problem::new(message, help));
        }
        let token_url = match endpoint(&token_url?) {
            Ok(url) => url,
            Err(problem) => {
                reader.findings.error(&anywhere, problem);
                return None;
            }
        };
        let (client_secret, ..) = client_secret?;
        let client_id = client_id?;
        Some(OAuth {
            token_url,
            client_id,
            client_secret,
            client_authentication,
            scope,
            audience,
            ca_location,
        })
    }
}

fn ca_location(reader: &mut Reader) -> Option<PathBuf> {
    let (name, place) = (reader.text(SECTION, "ca_location")?, reader.place(SECTION, "ca_location")?);
    if !reader.opens_files_of(SECTION) {
        return Some(reader.lookup.resolve(&name));
    }
    match reader.readable_file("[kafka.oauth] ca_location", &name) {
        Ok(path) => Some(path),
        Err(problem) => {
            reader.findings.error(&place, problem);
            None
        }
    }
}

/// Nothing of the URL is quoted: it could hold a password.
fn endpoint(text: &str) -> Result<Uri, Problem> {
    let problem =
        |message: &str, help: &str| Err(Problem::new(format!("[kafka.oauth] token_url {message}"), help));
    let Ok(url) = text.parse::<Uri>() else {
        return problem("is not a URL", "for instance \"https://login.example.com/oauth2/token\"");
    };
    let (Some(scheme), Some(authority)) = (url.scheme_str(), url.authority()) else {
        return problem("is not a URL", "for instance \"https://login.example.com/oauth2/token\"");
    };
    if authority.as_str().contains('@') {
        return problem("holds a user or a password", "give them as client_id and client_secret_file");
    }
    match scheme {
        "https" => Ok(url),
        "http" if is_loopback(authority.host()) => Ok(url),
        "http" => problem("would send the secret unencrypted", "use https"),
        _ => problem("is neither https nor http", "use https"),
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || address.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}
