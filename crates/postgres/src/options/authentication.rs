//! `require_auth` and `requirepeer`: which servers get the password, and how.

use settings::choice;
use settings::findings::Problem;

use super::invalid;
use super::tls::TlsMode;

choice! {
    /// How a server authenticates the relay: libpq's words in `require_auth`.
    AuthMethod {
        /// The password in clear text.
        Password = "password",
        /// An MD5 hash of the password.
        Md5 = "md5",
        /// SCRAM, which does not reveal the password.
        ScramSha256 = "scram-sha-256",
        /// Nothing, or the certificate of the client.
        None = "none",
    }
}

const ALL: [AuthMethod; 4] =
    [AuthMethod::Password, AuthMethod::Md5, AuthMethod::ScramSha256, AuthMethod::None];

/// The methods that a server may use, and the user that must run it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Authentication {
    /// The allowed methods.
    pub methods: Vec<AuthMethod>,
    /// For Unix sockets: the name or number of the user of the server.
    pub peer: Option<String>,
}

impl Authentication {
    /// Sets a parameter. Returns `None` if it is not about authentication.
    pub(super) fn set(&mut self, key: &str, value: &str) -> Option<Result<(), Problem>> {
        match key {
            "requirepeer" => self.peer = Some(value.to_owned()).filter(|peer| !peer.is_empty()),
            "require_auth" if value.is_empty() => self.methods.clear(),
            "require_auth" => match methods(value) {
                Some(methods) => self.methods = methods,
                None => {
                    let help = "set one or more of password, md5, scram-sha-256 and none, separated by commas; or \
                                exclude some, each with an exclamation mark: \"!password,!md5\"";
                    return Some(Err(invalid(key, help)));
                }
            },
            _ => return None,
        }
        Some(Ok(()))
    }

    /// Without `require_auth`, a server that is not verified gets no password.
    pub(super) fn resolve(mut self, mode: TlsMode) -> Authentication {
        if self.methods.is_empty() {
            let is_safe = |method: &AuthMethod| !matches!(method, AuthMethod::Password | AuthMethod::Md5);
            let is_verified = mode >= TlsMode::VerifyCa;
            self.methods = ALL.into_iter().filter(|method| is_verified || is_safe(method)).collect();
        }
        self
    }
}

/// As in libpq, all words are excluded or none.
fn methods(text: &str) -> Option<Vec<AuthMethod>> {
    let words: Vec<&str> = text.split(',').map(str::trim).collect();
    let excluded: Option<Vec<_>> =
        words.iter().map(|word| AuthMethod::named(word.strip_prefix('!')?)).collect();
    match excluded {
        Some(excluded) => {
            let rest: Vec<_> = ALL.into_iter().filter(|method| !excluded.contains(method)).collect();
            (!rest.is_empty()).then_some(rest)
        }
        None => words.into_iter().map(AuthMethod::named).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(text: &str, mode: TlsMode) -> Option<Vec<&'static str>> {
        let mut authentication = Authentication::default();
        authentication.set("require_auth", text).unwrap().ok()?;
        Some(authentication.resolve(mode).methods.iter().map(|method| method.name()).collect())
    }

    #[test]
    fn methods_are_listed_or_excluded() {
        for (text, mode, expected) in [
            ("", TlsMode::Require, &["scram-sha-256", "none"][..]),
            ("", TlsMode::VerifyCa, &["password", "md5", "scram-sha-256", "none"]),
            ("md5, password", TlsMode::Prefer, &["md5", "password"]),
            ("scram-sha-256", TlsMode::VerifyFull, &["scram-sha-256"]),
            ("!password,!md5", TlsMode::VerifyFull, &["scram-sha-256", "none"]),
        ] {
            assert_eq!(allowed(text, mode).as_deref(), Some(expected), "{text}");
        }
        for text in
            ["gss", "!gss", "scram-sha-256,!md5", "!md5,none", ",", "!password,!md5,!scram-sha-256,!none"]
        {
            assert_eq!(allowed(text, TlsMode::Prefer), None, "{text}");
        }
    }
}
