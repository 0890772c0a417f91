//! `[kafka.oauth]`: tokens for the login to Kafka, by the client credentials grant of OAuth 2.0 (RFC 6749, 4.4).

use std::net::IpAddr;

use hyper::Uri;

use crate::config::catalogue::{OAuth, SETTINGS};
use crate::config::findings::{Place, Problem};
use crate::config::reader::Reader;
use crate::config::setting::{Fallback, Section, Setting};
use crate::config::values::FromText;

impl OAuth {
    /// Where the section is in use; `None` when it is not.
    pub(super) fn place(reader: &Reader) -> Option<Place> {
        let needed = |setting: &&Setting| !matches!(setting.fallback, Fallback::Default(_));
        let settings = SETTINGS.iter().filter(|setting| setting.section == OAuth::token_url.section);
        settings.filter(needed).find_map(|setting| reader.place(setting))
    }

    /// `None` when the section is not in use, or cannot be used.
    pub(super) fn from(reader: &mut Reader) -> Option<OAuth> {
        let oauth = OAuth::read(reader);
        let anywhere = OAuth::place(reader)?;
        let secret = [&OAuth::client_secret, &OAuth::client_secret_file];
        let needed = [
            ("token_url", &[&OAuth::token_url][..]),
            ("client_id", &[&OAuth::client_id]),
            ("client_secret or client_secret_file", &secret),
        ];
        for (name, settings) in needed {
            if reader.whole && settings.iter().all(|setting| reader.place(setting).is_none()) {
                let help = "a token needs token_url, client_id and client_secret_file; without them, remove the section";
                reader
                    .findings
                    .error(&anywhere, Problem::new(format!("[kafka.oauth] {name} is missing"), help));
            }
        }
        oauth
    }
}

/// A token endpoint: `https`, or `http` on this host. The URL is not quoted: it could hold a password.
impl FromText for Uri {
    fn from_text(text: &str, setting: &Setting, _: &Reader) -> Result<Uri, Problem> {
        let problem = |message: &str, help: &str| Err(Problem::new(format!("{setting} {message}"), help));
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
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || address.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}
