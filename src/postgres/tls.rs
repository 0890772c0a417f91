//! TLS to Postgres: from what the user wrote to a connector, with libpq's meaning of each mode.
//!
//! Two things differ from libpq on purpose: without a root certificate the system's authorities are trusted, and
//! `prefer` never goes back to plain text after a handshake that failed.

use std::path::{Path, PathBuf};

use openssl::error::ErrorStack;
use openssl::pkey::{PKey, Private};
use openssl::ssl::{SslConnector, SslConnectorBuilder, SslMethod, SslVerifyMode, SslVersion};
use openssl::x509::X509;
use openssl::x509::store::X509StoreBuilder;
use postgres_openssl::MakeTlsConnector;

use crate::config::{Tls, TlsMode};

/// Why there is no connector. Nothing of a file's content is shown.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read.
    #[error("the {what} {} cannot be read: {source}", path.display())]
    Unreadable {
        /// What the file is for.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is something else.
    #[error("the {what} {} is not usable: {problem}", path.display())]
    Unusable {
        /// What the file is for.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What was expected instead.
        problem: &'static str,
    },
    /// A certificate without a key, or the other way round.
    #[error("of the client certificate and its key only one is given: give both, or neither")]
    Halved,
    /// OpenSSL itself failed.
    #[error("OpenSSL cannot be set up: {0}")]
    OpenSsl(#[from] ErrorStack),
}

/// The connector for `tls`. The files are read at each call, so a connection made after a rotation uses the new ones.
///
/// Whether TLS is used at all is `ssl_mode` of the `tokio_postgres::Config`; this decides what a server must prove.
pub fn connector(tls: &Tls) -> Result<MakeTlsConnector, TlsError> {
    let mut builder = SslConnector::builder(SslMethod::tls_client())?;
    builder.set_min_proto_version(Some(SslVersion::TLS1_2))?;
    postgres_openssl::set_postgresql_alpn(&mut builder)?; // servers demand it for sslnegotiation=direct
    if let Some(path) = &tls.root_cert {
        trust_only(&mut builder, path)?;
    }
    match (&tls.client_cert, &tls.client_key) {
        (Some(cert), Some(key)) => present(&mut builder, cert, key)?,
        (None, None) => {}
        _ => return Err(TlsError::Halved),
    }

    let verify_chain = match tls.mode {
        TlsMode::Disable | TlsMode::Prefer => false,
        TlsMode::Require => tls.root_cert.is_some(),
        TlsMode::VerifyCa | TlsMode::VerifyFull => true,
    };
    builder.set_verify(if verify_chain { SslVerifyMode::PEER } else { SslVerifyMode::NONE });
    let verify_host = tls.mode == TlsMode::VerifyFull;
    let mut connector = MakeTlsConnector::new(builder.build());
    connector.set_callback(move |connection, _| {
        connection.set_verify_hostname(verify_host);
        Ok(())
    });
    Ok(connector)
}

/// Replaces the system's authorities; adding to them would let any of those sign for the server.
fn trust_only(builder: &mut SslConnectorBuilder, path: &Path) -> Result<(), TlsError> {
    let mut store = X509StoreBuilder::new()?;
    for certificate in certificates("root certificate", path)? {
        store.add_cert(certificate)?;
    }
    builder.set_cert_store(store.build());
    Ok(())
}

fn present(builder: &mut SslConnectorBuilder, cert: &Path, key: &Path) -> Result<(), TlsError> {
    let mut chain = certificates("client certificate", cert)?.into_iter();
    if let Some(own) = chain.next() {
        builder.set_certificate(&own)?;
    }
    for issuer in chain {
        builder.add_extra_chain_cert(issuer)?;
    }
    let unusable = |problem| TlsError::Unusable { what: "client key", path: key.to_owned(), problem };
    let private_key = private_key(key)?;
    builder
        .set_private_key(&private_key)
        .and_then(|()| builder.check_private_key())
        .map_err(|_| unusable("it is not the key of the client certificate"))
}

fn private_key(path: &Path) -> Result<PKey<Private>, TlsError> {
    let pem = read("client key", path)?;
    // With a passphrase given, even an empty one, OpenSSL does not ask the terminal for it.
    PKey::private_key_from_pem_passphrase(&pem, b"").map_err(|_| TlsError::Unusable {
        what: "client key",
        path: path.to_owned(),
        problem: "an unencrypted private key in PEM form is needed",
    })
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<X509>, TlsError> {
    match X509::stack_from_pem(&read(what, path)?) {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => {
            let problem = "at least one certificate in PEM form is needed";
            Err(TlsError::Unusable { what, path: path.to_owned(), problem })
        }
    }
}

fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::Unreadable { what, path: path.to_owned(), source })
}

#[cfg(test)]
mod tests;
