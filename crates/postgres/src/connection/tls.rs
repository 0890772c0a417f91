//! TLS to PostgreSQL: builds a connector from the settings. Modes mean the same as in libpq.
//!
//! There are two intended differences: without a root certificate, the system's authorities are trusted, and `prefer` does
//! not fall back to plain text after a failed handshake.

use crate::options::{Tls, TlsMode};
use openssl::error::ErrorStack;
use openssl::pkey::{PKey, Private};
use openssl::ssl::{SslConnector, SslConnectorBuilder, SslFiletype, SslMethod, SslVerifyMode, SslVersion};
use openssl::x509::X509;
use openssl::x509::store::{X509Lookup, X509Store, X509StoreBuilder};
use openssl::x509::verify::X509VerifyFlags;
use postgres_openssl::MakeTlsConnector;
use settings::secret::Secret;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Why the connector cannot be built. Messages never quote the content of a file.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("the {what} {} cannot be read: {source}", path.display())]
    Unreadable { what: &'static str, path: PathBuf, source: std::io::Error },
    #[error("the {what} {} is invalid: {problem}", path.display())]
    Unusable { what: &'static str, path: PathBuf, problem: &'static str },
    #[error("OpenSSL cannot be set up: {0}")]
    OpenSsl(#[from] ErrorStack),
}

/// Builds a connector from the present content of the files.
///
/// [`Tls::mode`] decides whether TLS is used. The connector decides what to verify.
pub fn connector(tls: &Tls) -> Result<MakeTlsConnector, TlsError> {
    let mut builder = SslConnector::builder(SslMethod::tls_client())?;
    builder.set_min_proto_version(tls.version_min.or(Some(SslVersion::TLS1_2)))?;
    builder.set_max_proto_version(tls.version_max)?;
    postgres_openssl::set_postgresql_alpn(&mut builder)?; // required for sslnegotiation=direct
    if tls.root_cert.is_some() || tls.crl.is_some() || tls.crl_dir.is_some() {
        builder.set_cert_store(trusted(tls)?);
    }
    if let (Some(cert), Some(key)) = (&tls.client_cert, &tls.client_key) {
        present(&mut builder, cert, key, tls)?;
    }

    let verify_chain = match tls.mode {
        TlsMode::Disable | TlsMode::Prefer => false,
        TlsMode::Require => tls.root_cert.is_some(),
        TlsMode::VerifyCa | TlsMode::VerifyFull => true,
    };
    builder.set_verify(if verify_chain { SslVerifyMode::PEER } else { SslVerifyMode::NONE });
    let verify_host = tls.mode == TlsMode::VerifyFull;
    let names_host = !tls.hides_host;
    let mut connector = MakeTlsConnector::new(builder.build());
    connector.set_callback(move |connection, _| {
        connection.set_verify_hostname(verify_host);
        connection.set_use_server_name_indication(names_host);
        Ok(())
    });
    Ok(connector)
}

/// Trusts only the authorities of the file, because any of the system's could sign for the server. With revocation lists,
/// every certificate of the chain needs one, as in libpq.
fn trusted(tls: &Tls) -> Result<X509Store, TlsError> {
    let mut store = X509StoreBuilder::new()?;
    match &tls.root_cert {
        Some(path) => {
            for certificate in certificates("root certificate", path)? {
                store.add_cert(certificate)?;
            }
        }
        None => store.set_default_paths()?,
    }
    let unusable = |path: &Path, problem| unusable("revocation list", path, problem);
    let name =
        |path: &Path| path.to_str().map(str::to_owned).ok_or_else(|| unusable(path, "its name is not UTF-8"));
    if let Some(path) = &tls.crl {
        let loaded = store.add_lookup(X509Lookup::file())?.load_crl_file(name(path)?, SslFiletype::PEM);
        loaded.map_err(|_| unusable(path, "it contains no PEM revocation list"))?;
    }
    if let Some(path) = &tls.crl_dir {
        let name = name(path)?;
        store.add_lookup(X509Lookup::hash_dir())?.add_dir(&name, SslFiletype::PEM)?;
    }
    if tls.crl.is_some() || tls.crl_dir.is_some() {
        store.set_flags(X509VerifyFlags::CRL_CHECK | X509VerifyFlags::CRL_CHECK_ALL)?;
    }
    Ok(store.build())
}

fn present(builder: &mut SslConnectorBuilder, cert: &Path, key: &Path, tls: &Tls) -> Result<(), TlsError> {
    let mut chain = certificates("client certificate", cert)?.into_iter();
    if let Some(own) = chain.next() {
        builder.set_certificate(&own)?;
    }
    for issuer in chain {
        builder.add_extra_chain_cert(issuer)?;
    }
    let private_key = private_key(key, tls)?;
    builder
        .set_private_key(&private_key)
        .and_then(|()| builder.check_private_key())
        .map_err(|_| unusable("client key", key, "it does not match the client certificate"))
}

fn private_key(path: &Path, tls: &Tls) -> Result<PKey<Private>, TlsError> {
    let pem = read("client key", path)?;
    // Without a passphrase, OpenSSL would ask for one on the terminal. An empty one prevents that.
    let password = tls.key_password.as_ref().map_or("", Secret::expose);
    let problem = match &tls.key_password {
        None => "it is not an unencrypted PEM private key (for an encrypted key, set sslpassword in the url)",
        Some(_) => "it is not a PEM private key that sslpassword decrypts",
    };
    PKey::private_key_from_pem_passphrase(&pem, password.as_bytes())
        .map_err(|_| unusable("client key", path, problem))
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<X509>, TlsError> {
    match X509::stack_from_pem(&read(what, path)?) {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(unusable(what, path, "it contains no PEM certificate")),
    }
}

fn unusable(what: &'static str, path: &Path, problem: &'static str) -> TlsError {
    TlsError::Unusable { what, path: path.to_owned(), problem }
}

fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|source| TlsError::Unreadable { what, path: path.to_owned(), source })
}

/// For how long the authorities of the system are trusted before they are read again.
const SYSTEM_CACHED_FOR: Duration = Duration::from_secs(600);

/// The connector that was built last.
#[derive(Default)]
pub(crate) struct CachedConnector(Mutex<Option<Cached>>);

struct Cached {
    connector: MakeTlsConnector,
    tls: Tls,
    contents: Vec<Option<Vec<u8>>>,
    built: Instant,
}

impl CachedConnector {
    /// A connector for these settings and the present content of their files.
    pub(crate) fn get(&self, tls: &Tls) -> Result<MakeTlsConnector, TlsError> {
        let contents = contents(tls);
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cached) = cached.as_ref().filter(|cached| cached.is_for(tls, &contents)) {
            return Ok(cached.connector.clone());
        }
        let connector = connector(tls)?;
        *cached =
            Some(Cached { connector: connector.clone(), tls: tls.clone(), contents, built: Instant::now() });
        Ok(connector)
    }
}

impl Cached {
    fn is_for(&self, tls: &Tls, contents: &[Option<Vec<u8>>]) -> bool {
        let system = tls.root_cert.is_none() && matches!(tls.mode, TlsMode::VerifyCa | TlsMode::VerifyFull);
        // OpenSSL reads the lists of a folder when it needs them, and never again.
        tls.crl_dir.is_none()
            && self.tls == *tls
            && self.contents == contents
            && (!system || self.built.elapsed() < SYSTEM_CACHED_FOR)
    }
}

/// `None` for a file that is not set, or that cannot be read: building the connector reports that.
fn contents(tls: &Tls) -> Vec<Option<Vec<u8>>> {
    let read = |path: &Option<PathBuf>| path.as_ref().and_then(|path| fs::read(path).ok());
    [&tls.root_cert, &tls.client_cert, &tls.client_key, &tls.crl].map(read).into()
}

#[cfg(test)]
mod tests;
