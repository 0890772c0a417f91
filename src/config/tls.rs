//! How the connection to Postgres is encrypted, and how the server is verified.

use std::net::IpAddr;
use std::path::PathBuf;

use tokio_postgres::config::{ChannelBinding, Host, SslMode, SslNegotiation};

use super::findings::Problem;
use super::secret::{Lookup, Secret};

/// How the connection is encrypted, and how the server is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// How far TLS is required and verified.
    pub mode: TlsMode,
    /// The certificate authorities to trust; `None` means those of the system.
    pub root_cert: Option<PathBuf>,
    /// The client's certificate chain.
    pub client_cert: Option<PathBuf>,
    /// The client's key; given exactly when the certificate is.
    pub client_key: Option<PathBuf>,
    /// What the client's key is encrypted with.
    pub key_password: Option<Secret>,
    /// A file of revocation lists.
    pub crl: Option<PathBuf>,
    /// A folder of revocation lists, named by hash as OpenSSL wants it.
    pub crl_dir: Option<PathBuf>,
    /// Whether the server is told which host is meant (SNI).
    pub names_host: bool,
    /// The oldest version of TLS.
    pub version_min: TlsVersion,
    /// The newest version of TLS; `None` is the newest that OpenSSL has.
    pub version_max: Option<TlsVersion>,
}

impl Tls {
    /// This mode, and nothing else out of the ordinary.
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
}

/// A version of TLS that is still to be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// 1.2.
    V1_2,
    /// 1.3.
    V1_3,
}

impl TlsVersion {
    pub(super) fn named(name: &str) -> Option<TlsVersion> {
        match name {
            "TLSv1.2" => Some(TlsVersion::V1_2),
            "TLSv1.3" => Some(TlsVersion::V1_3),
            _ => None,
        }
    }
}

/// How far TLS is required and verified: libpq's `sslmode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsMode {
    /// No TLS.
    Disable,
    /// TLS if the server has it, without verification.
    Prefer,
    /// TLS, without verification.
    Require,
    /// TLS, with a certificate of a trusted authority.
    VerifyCa,
    /// TLS, with a certificate of a trusted authority for this host.
    VerifyFull,
}

impl TlsMode {
    pub(super) const ALL: [(TlsMode, &'static str); 5] = [
        (TlsMode::Disable, "disable"),
        (TlsMode::Prefer, "prefer"),
        (TlsMode::Require, "require"),
        (TlsMode::VerifyCa, "verify-ca"),
        (TlsMode::VerifyFull, "verify-full"),
    ];

    /// What `tokio_postgres` is told; the connector sees to the verification.
    pub(super) fn negotiation(self) -> SslMode {
        match self {
            TlsMode::Disable => SslMode::Disable,
            TlsMode::Prefer => SslMode::Prefer,
            TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => SslMode::Require,
        }
    }

    /// The word that libpq has for it.
    pub fn name(self) -> &'static str {
        TlsMode::ALL.iter().find(|(mode, _)| *mode == self).map_or("", |(_, name)| name)
    }

    pub(super) fn named(name: &str) -> Option<TlsMode> {
        TlsMode::ALL.iter().find(|(_, known)| *known == name).map(|(mode, _)| *mode)
    }
}

/// The parameters of TLS, as one source gives them. The last six can only stand in the URL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TlsKeys {
    pub(super) mode: Option<TlsMode>,
    pub(super) root_cert: Option<String>,
    pub(super) client_cert: Option<String>,
    pub(super) client_key: Option<String>,
    pub(super) key_password: Option<Secret>,
    pub(super) crl: Option<String>,
    pub(super) crl_dir: Option<String>,
    pub(super) hides_host: bool,
    pub(super) version_min: Option<TlsVersion>,
    pub(super) version_max: Option<TlsVersion>,
}

impl TlsKeys {
    /// These parameters, and for those that are not given the other's.
    pub(super) fn or(&self, other: TlsKeys) -> TlsKeys {
        TlsKeys {
            mode: self.mode.or(other.mode),
            root_cert: self.root_cert.clone().or(other.root_cert),
            client_cert: self.client_cert.clone().or(other.client_cert),
            client_key: self.client_key.clone().or(other.client_key),
            ..other
        }
    }

    /// What the parameters mean for this server.
    pub(super) fn resolve(&self, config: &tokio_postgres::Config, lookup: &Lookup) -> Tls {
        let path = |name: &Option<String>| {
            name.as_deref().filter(|name| !name.is_empty()).map(|name| lookup.resolve(name))
        };
        let root_cert = path(&self.root_cert).filter(|_| !self.trusts_system());
        let mode = match self.mode {
            // As libpq does it.
            Some(TlsMode::Require) if root_cert.is_some() => TlsMode::VerifyCa,
            Some(mode) => mode,
            None if is_local(config) => TlsMode::Prefer,
            None => TlsMode::VerifyFull,
        };
        Tls {
            mode,
            root_cert,
            client_cert: path(&self.client_cert),
            client_key: path(&self.client_key),
            key_password: self.key_password.clone(),
            crl: path(&self.crl),
            crl_dir: path(&self.crl_dir),
            names_host: !self.hides_host,
            version_min: self.version_min.unwrap_or(TlsVersion::V1_2),
            version_max: self.version_max,
        }
    }

    fn trusts_system(&self) -> bool {
        self.root_cert.as_deref() == Some("system")
    }

    /// What is wrong with the parameters and with the files that they name.
    pub(super) fn check(&self, tls: &Tls, lookup: &Lookup) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.trusts_system() && tls.mode < TlsMode::VerifyFull {
            let message = "sslrootcert is \"system\", which is safe only with sslmode verify-full";
            problems.push(Problem::new(message, "set sslmode to verify-full"));
        }
        if tls.client_cert.is_some() != tls.client_key.is_some() {
            let message = "of sslcert and sslkey, only one is given";
            problems.push(Problem::new(message, "give both, or neither"));
        }
        if tls.version_max.is_some_and(|max| max < tls.version_min) {
            let message = "ssl_max_protocol_version is below ssl_min_protocol_version";
            problems.push(Problem::new(message, "remove ssl_max_protocol_version"));
        }
        if (tls.crl.is_some() || tls.crl_dir.is_some()) && tls.mode < TlsMode::VerifyCa {
            let message = format!("with sslmode {} no certificate is verified, nor revoked", tls.mode.name());
            problems
                .push(Problem::new(message, "set sslmode to verify-full, or remove sslcrl and sslcrldir"));
        }
        let files = [
            ("sslrootcert", &tls.root_cert),
            ("sslcert", &tls.client_cert),
            ("sslkey", &tls.client_key),
            ("sslcrl", &tls.crl),
            ("sslcrldir", &tls.crl_dir),
        ];
        for (key, path) in files {
            if let Some(path) = path
                && let Err(error) = std::fs::File::open(path)
            {
                let message = format!("{key}: {} cannot be read: {error}", path.display());
                problems.push(Problem::new(message, format!("it is looked up in {}", lookup.places())));
            }
        }
        problems
    }
}

/// What asks for TLS where there is none.
pub(super) fn needs_tls(config: &tokio_postgres::Config, mode: TlsMode) -> Vec<Problem> {
    let mut problems = Vec::new();
    if config.get_channel_binding() == ChannelBinding::Require && mode == TlsMode::Disable {
        let message = "channel_binding is require, which needs TLS, and sslmode is disable";
        problems.push(Problem::new(message, "set sslmode to verify-full"));
    }
    if config.get_ssl_negotiation() == SslNegotiation::Direct && mode < TlsMode::Require {
        let message =
            format!("sslnegotiation is direct, which cannot do without TLS, and sslmode is {}", mode.name());
        problems.push(Problem::new(message, "set sslmode to verify-full"));
    }
    problems
}

/// Whether every host is a socket or loopback. With an address and a name, the address is what is connected to.
pub(super) fn is_local(config: &tokio_postgres::Config) -> bool {
    let local_host = |host: &Host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            name.eq_ignore_ascii_case("localhost")
                || name.parse().is_ok_and(|address: IpAddr| address.is_loopback())
        }
    };
    match config.get_hostaddrs() {
        [] => config.get_hosts().iter().all(local_host),
        addresses => addresses.iter().all(IpAddr::is_loopback),
    }
}
