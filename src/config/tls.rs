//! How the connection to Postgres is encrypted, and how the server is verified.

use std::net::IpAddr;
use std::path::PathBuf;

use tokio_postgres::config::{Host, SslMode};

use super::findings::Problem;
use super::secret::Lookup;

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

/// The four parameters of TLS, as one source gives them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TlsKeys {
    pub(super) mode: Option<TlsMode>,
    pub(super) root_cert: Option<String>,
    pub(super) client_cert: Option<String>,
    pub(super) client_key: Option<String>,
}

impl TlsKeys {
    /// These parameters, and for those that are not given the other's.
    pub(super) fn or(&self, other: TlsKeys) -> TlsKeys {
        TlsKeys {
            mode: self.mode.or(other.mode),
            root_cert: self.root_cert.clone().or(other.root_cert),
            client_cert: self.client_cert.clone().or(other.client_cert),
            client_key: self.client_key.clone().or(other.client_key),
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
        Tls { mode, root_cert, client_cert: path(&self.client_cert), client_key: path(&self.client_key) }
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
        let files =
            [("sslrootcert", &tls.root_cert), ("sslcert", &tls.client_cert), ("sslkey", &tls.client_key)];
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
