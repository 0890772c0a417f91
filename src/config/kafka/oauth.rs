//! `[kafka.oauth]`: token authentication with the client credentials grant of OAuth 2.0 (RFC 6749, 4.4).

use hyper::Uri;

use crate::config::catalogue::OAuth;
use crate::config::findings::{Place, Problem};
use crate::config::reading::reader::Reader;
use crate::config::reading::values::FromText;
use crate::config::rules::{is_loopback, is_loopback_address};
use crate::config::setting::{Section, Setting};

impl OAuth {
    /// The place of the first setting of the section that has no default; `None` if the section is not used.
    pub(super) fn place(reader: &Reader) -> Option<Place> {
        super::tokens::place(reader, OAuth::token_url.section)
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

/// A token endpoint: `https`, or `http` to a loopback address. Messages do not quote the URL, because it could contain a password.
impl FromText for Uri {
    fn from_text(text: &str, setting: &Setting, _: &Reader) -> Result<Uri, Problem> {
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
            "https" => Ok(url),
            "http" if is_loopback_address(authority.host()) => Ok(url),
            "http" if is_loopback(authority.host()) => problem(
                "uses http with a name, which a resolver could map to another host",
                "use http://127.0.0.1",
            ),
            "http" => problem("uses http, so the secret would be sent unencrypted", "use https"),
            _ => problem("uses neither https nor http", "use https"),
        }
    }
}
