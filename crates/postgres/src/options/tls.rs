//! What protects the connection to PostgreSQL: TLS, and `require_auth` and `requirepeer`, which decide which servers get the
//! password, and how.

use crate::options::invalid;
use settings::choice;
use settings::findings::Problem;
use settings::reader::{check_key, is_loopback};
use settings::secret::{Lookup, Secret};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::PathBuf;
use tokio_postgres::config::{ChannelBinding, Host, SslNegotiation};

/// How the connection is encrypted, and how the server is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// How far TLS is required and verified.
    pub mode: TlsMode,
    /// The trusted certificate authorities; `None` for those of the system.
    pub root_cert: Option<PathBuf>,
    pub client_cert: Option<PathBuf>,
    /// The client's key, set if and only if the certificate is set.
    pub client_key: Option<PathBuf>,
    /// The password of the client's key.
    pub key_password: Option<Secret>,
    pub crl: Option<PathBuf>,
    /// A folder of revocation lists, named by hash as in OpenSSL.
    pub crl_dir: Option<PathBuf>,
    /// Whether to send the host name to the server (SNI).
    pub names_host: bool,
    pub version_min: TlsVersion,
    /// The newest version of TLS; `None` for the newest of OpenSSL.
    pub version_max: Option<TlsVersion>,
}

impl Tls {
    /// This mode, with defaults for everything else.
    pub fn new(mode: TlsMode) -> Tls {
        Tls {
            mode,
            root_cert: None,
            client_cert: None,
            client_key: None,
            key_password: None,
            crl: None,
            crl_dir: None,
            names_host: true,
            version_min: TlsVersion::V1_2,
            version_max: None,
        }
    }

    fn unreadable_files(&self, lookup: &Lookup) -> Vec<Problem> {
        let files = [
            ("sslrootcert", &self.root_cert),
            ("sslcert", &self.client_cert),
            ("sslkey", &self.client_key),
            ("sslcrl", &self.crl),
            ("sslcrldir", &self.crl_dir),
        ];
        let unreadable = |(key, path): (&str, &Option<PathBuf>)| {
            let path = path.as_ref()?;
            let error = std::fs::File::open(path).err()?;
            let message = format!("{key}: cannot read {}: {error}", path.display());
            let help = match error.kind() {
                ErrorKind::PermissionDenied => "make it readable for the user that runs the relay".to_owned(),
                _ => format!(
                    "correct the name, or create the file. Relative names are looked up in {}",
                    lookup.places()
                ),
            };
            Some(Problem::new(message, help))
        };
        files.into_iter().filter_map(unreadable).collect()
    }
}

choice! {
    /// A secure version of TLS.
    #[derive(PartialOrd, Ord)]
    TlsVersion {
        /// 1.2.
        V1_2 = "TLSv1.2",
        /// 1.3.
        V1_3 = "TLSv1.3",
    }
}

choice! {
    /// How far TLS is required and verified: libpq's `sslmode`.
    #[derive(PartialOrd, Ord)]
    TlsMode {
        /// No TLS.
        Disable = "disable",
        /// TLS if the server supports it, without verification.
        Prefer = "prefer",
        /// TLS, without verification.
        Require = "require",
        /// TLS, with a certificate of a trusted authority.
        VerifyCa = "verify-ca",
        /// TLS, with a certificate of a trusted authority for this host.
        VerifyFull = "verify-full",
    }
}

/// Collects the TLS parameters. Later ones override earlier ones.
pub(super) struct TlsParameters<'a> {
    lookup: &'a Lookup,
    mode: Option<TlsMode>,
    trusts_system: bool,
    tls: Tls,
}

impl TlsParameters<'_> {
    pub(super) fn new(lookup: &Lookup) -> TlsParameters<'_> {
        TlsParameters { lookup, mode: None, trusts_system: false, tls: Tls::new(TlsMode::Prefer) }
    }

    /// Sets a parameter. Returns `None` if it is not about TLS.
    pub(super) fn set(&mut self, key: &str, value: &str) -> Option<Result<(), Problem>> {
        let tls = &mut self.tls;
        let path = Some(value).filter(|name| !name.is_empty()).map(|name| self.lookup.resolve(name));
        let version = || {
            let help = "set TLSv1.2 or TLSv1.3: older versions are insecure";
            TlsVersion::named(value).ok_or_else(|| invalid(key, help))
        };
        match key {
            "sslmode" => match TlsMode::named(value) {
                Some(mode) => self.mode = Some(mode),
                None if value == "allow" => {
                    let help =
                        "set prefer or verify-full: allow would use TLS only if the server requires it";
                    return Some(Err(invalid(key, help)));
                }
                None => {
                    return Some(Err(invalid(key, &format!("set one of {}", TlsMode::WORDS.join(", ")))));
                }
            },
            "sslrootcert" => {
                self.trusts_system = value == "system";
                tls.root_cert = path.filter(|_| value != "system");
            }
            "sslcert" => tls.client_cert = path,
            "sslkey" => tls.client_key = path,
            "sslpassword" => tls.key_password = Some(Secret::new(value)),
            "sslcrl" => tls.crl = path,
            "sslcrldir" => tls.crl_dir = path,
            "sslsni" if ["0", "1"].contains(&value) => tls.names_host = value == "1",
            "sslsni" => return Some(Err(invalid(key, "set 1, or 0 to hide the host name"))),
            "ssl_min_protocol_version" => return Some(version().map(|version| tls.version_min = version)),
            "ssl_max_protocol_version" => {
                return Some(version().map(|version| tls.version_max = Some(version)));
            }
            _ => return None,
        }
        Some(Ok(()))
    }

    /// The TLS settings, and the problems of the parameters and their files.
    pub(super) fn resolve(self, config: &tokio_postgres::Config) -> (Tls, Vec<Problem>) {
        let TlsParameters { lookup, mode, trusts_system, mut tls } = self;
        tls.mode = match mode {
            // As in libpq.
            Some(TlsMode::Require) if tls.root_cert.is_some() => TlsMode::VerifyCa,
            Some(mode) => mode,
            None if is_local(config) => TlsMode::Prefer,
            None => TlsMode::VerifyFull,
        };
        let mode = tls.mode.name();
        let verify = "set sslmode to verify-full";
        let rules = [
            (
                trusts_system && tls.mode < TlsMode::VerifyFull,
                "sslrootcert is \"system\", which is secure only with sslmode verify-full".to_owned(),
                verify,
            ),
            (
                tls.client_cert.is_some() != tls.client_key.is_some(),
                "only one of sslcert and sslkey is set".to_owned(),
                "set both or neither",
            ),
            (
                tls.version_max.is_some_and(|max| max < tls.version_min),
                "ssl_max_protocol_version is lower than ssl_min_protocol_version".to_owned(),
                "remove ssl_max_protocol_version",
            ),
            (
                (tls.crl.is_some() || tls.crl_dir.is_some()) && tls.mode < TlsMode::VerifyCa,
                format!("sslmode is {mode}, so sslcrl and sslcrldir have no effect"),
                "set sslmode to verify-full, or remove sslcrl and sslcrldir",
            ),
            (
                config.get_channel_binding() == ChannelBinding::Require && tls.mode == TlsMode::Disable,
                "channel_binding is require, which needs TLS, but sslmode is disable".to_owned(),
                verify,
            ),
            (
                config.get_ssl_negotiation() == SslNegotiation::Direct && tls.mode < TlsMode::Require,
                format!("sslnegotiation is direct, which needs TLS, but sslmode is {mode}"),
                verify,
            ),
        ];
        let broken = rules.into_iter().filter(|(broken, ..)| *broken);
        let mut problems: Vec<_> = broken.map(|(_, message, help)| Problem::new(message, help)).collect();
        problems.extend(tls.unreadable_files(lookup));
        problems.extend(tls.client_key.as_deref().and_then(|key| check_key("sslkey", key).err()));
        (tls, problems)
    }
}

/// Whether every host is a Unix socket or loopback. If a host has a name and an address, the relay uses the address.
pub(super) fn is_local(config: &tokio_postgres::Config) -> bool {
    let local_host = |host: &Host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => is_loopback(name),
    };
    match config.get_hostaddrs() {
        [] => config.get_hosts().iter().all(local_host),
        addresses => addresses.iter().all(IpAddr::is_loopback),
    }
}

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
