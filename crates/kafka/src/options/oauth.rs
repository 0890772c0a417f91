//! `[kafka.oauth]`: token authentication with the client credentials grant of OAuth 2.0 (RFC 6749, 4.4).

use hyper::Uri;

use settings::findings::{Place, Problem};
use settings::reader::Reader;
use settings::secret::SecretSource;
use settings::setting::Fallback::{Default, Unset};
use settings::setting::Kind::{Choice, File, Text};
use settings::setting::{Section, Setting};
use settings::values::Value;
use settings::values::{is_loopback, is_loopback_address};
use settings::{choice, section};
use std::ops::Deref;
use std::path::PathBuf;

section! {
    "kafka.oauth" OAuth,
        "Authentication with tokens (SASL OAUTHBEARER, client credentials) instead of a user name and password. \
         Requires\n\"security.protocol\" = \"sasl_ssl\" in [kafka.properties]. Used if token_url \
         is set." {
        token_url: TokenUrl, Text, Unset("https://login.example.com/oauth2/token"), Restart,
            "Token endpoint of the identity provider. The URL must use https, unless the host is a loopback address.";
        client_id: String, Text, Unset("outbox-relay"), Restart,
            "Client ID of the relay at the identity provider.";
        client_secret / client_secret_file(
            "kafka-client-secret",
            "File that contains the client_secret. The file is reloaded for each token."
        ): SecretSource, Text, Unset("secret"), Restart,
            "Client secret.";
        client_authentication: ClientAuthentication, Choice(ClientAuthentication::WORDS), Default("basic"), Restart,
            "How the ID and the secret are sent. \"basic\" uses the Authorization header, which every \
             provider must support. \"post\"\nuses the body of the request.";
        scope: Option<String>, Text, Unset("kafka"), Restart,
            "Requested scopes, separated by spaces.";
        audience: Option<String>, Text, Unset("kafka"), Restart,
            "Requested audience, if the provider requires one.";
        ca_location: Option<PathBuf>, File, Unset("oauth-ca.pem"), Restart,
            "Trusted certificate authorities for the token endpoint. If unset, the system's trust store \
             is used.";
    }
}

choice! {
    /// How to send the client ID and secret to a token endpoint (RFC 6749, 2.3.1).
    ClientAuthentication {
        /// In the `Authorization` header.
        Basic = "basic",
        /// In the body.
        Post = "post",
    }
}

/// A token endpoint: `https`, or `http` to a loopback address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenUrl(Uri);

impl Deref for TokenUrl {
    type Target = Uri;

    fn deref(&self) -> &Uri {
        &self.0
    }
}

impl OAuth {
    /// The place of the first setting of the section that has no default; `None` if the section is not used.
    pub(super) fn place(reader: &Reader) -> Option<Place> {
        super::tokens::place::<OAuth>(reader)
    }

    /// Reads the section. `None` if it is not used or is incomplete.
    pub(super) fn from(reader: &mut Reader) -> Option<OAuth> {
        let oauth = OAuth::read(reader);
        let place = OAuth::place(reader)?;
        let secret = [&OAuth::client_secret, &OAuth::client_secret_file];
        let required = [
            ("token_url", &[&OAuth::token_url][..]),
            ("client_id", &[&OAuth::client_id]),
            ("client_secret or client_secret_file", &secret),
        ];
        for (name, settings) in required {
            if reader.whole && settings.iter().all(|setting| reader.place(setting).is_none()) {
                let help = "set token_url, client_id and client_secret_file, or remove the section";
                let message = format!("[kafka.oauth] {name} is missing");
                reader.findings.error(&place, Problem::new(message, help));
            }
        }
        oauth
    }
}

/// Messages do not quote the URL, because it could contain a password.
impl Value for TokenUrl {
    fn from_text(text: &str, setting: &Setting, _: &Reader) -> Result<TokenUrl, Problem> {
        let problem = |message: &str, help: &str| Err(Problem::new(format!("{setting} {message}"), help));
        let example = "for example \"https://login.example.com/oauth2/token\"";
        let Ok(url) = text.parse::<Uri>() else { return problem("is not a URL", example) };
        let (Some(scheme), Some(authority)) = (url.scheme_str(), url.authority()) else {
            return problem("is not a URL", example);
        };
        if authority.as_str().contains('@') {
            return problem("contains a user or a password", "set client_id and client_secret_file instead");
        }
        match scheme {
            "https" => Ok(TokenUrl(url)),
            "http" if is_loopback_address(authority.host()) => Ok(TokenUrl(url)),
            "http" if is_loopback(authority.host()) => problem(
                "uses http with a name, which a resolver could map to another host",
                "use http://127.0.0.1",
            ),
            "http" => problem("uses http, so the secret would be sent unencrypted", "use https"),
            _ => problem("uses neither https nor http", "use https"),
        }
    }

    fn shown(&self) -> Option<String> {
        Some(self.0.to_string())
    }
}
