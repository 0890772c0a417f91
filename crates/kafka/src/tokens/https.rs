//! The connections of token sources: TCP, and TLS with verified certificates. They use no proxy.

use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use hyper::Uri;
use hyper_openssl::client::legacy::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use openssl::error::ErrorStack;
use openssl::ssl::{self, ConnectConfiguration, SslConnector, SslMethod, SslVersion};
use openssl::x509::X509;
use openssl::x509::store::{X509Store, X509StoreBuilder};

use super::source::Problem;
use settings::certificates;

/// Connects with TCP, and with TLS if the URL is `https`. Trusts the authorities in the file or, without one, those of the
/// system.
pub(super) fn connector(
    ca_location: Option<&Path>,
    connect_timeout: Option<Duration>,
) -> Result<HttpsConnector<HttpConnector>, Problem> {
    let unusable = |error: ErrorStack| format!("TLS cannot be set up: {error}");
    let mut tls = SslConnector::builder(SslMethod::tls_client()).map_err(unusable)?;
    tls.set_min_proto_version(Some(SslVersion::TLS1_2)).map_err(unusable)?;
    if let Some(path) = ca_location {
        let trusted = authorities(path);
        let trusted =
            trusted.map_err(|error| format!("ca_location: {} is invalid: {error}", path.display()))?;
        tls.set_cert_store(trusted);
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(connect_timeout);
    let mut connector = HttpsConnector::with_connector(tcp, tls).map_err(unusable)?;
    connector.set_callback(verify_ipv6);
    Ok(connector)
}

/// Trusts only the certificate authorities in a file. An error never contains the content of the file.
pub(crate) fn authorities(path: &Path) -> io::Result<X509Store> {
    trusting(&std::fs::read(path)?)
}

/// Like [`authorities`], but reads the certificates from a string.
pub(crate) fn trusting(pem: &[u8]) -> io::Result<X509Store> {
    let none = || io::Error::new(io::ErrorKind::InvalidData, "it contains no PEM certificate");
    let certificates = X509::stack_from_pem(pem).ok().filter(|found| !found.is_empty()).ok_or_else(none)?;
    let mut store = X509StoreBuilder::new()?;
    for certificate in certificates {
        store.add_cert(certificate)?;
    }
    Ok(store.build())
}

/// Works around the connector, which treats the brackets of an IPv6 address as part of the name.
fn verify_ipv6(tls: &mut ConnectConfiguration, endpoint: &Uri) -> Result<(), ErrorStack> {
    let address = endpoint.host().and_then(|host| host.strip_prefix('[')?.strip_suffix(']'));
    if let Some(address) = address.and_then(|address| address.parse::<IpAddr>().ok()) {
        tls.set_use_server_name_indication(false);
        tls.set_verify_hostname(false);
        tls.param_mut().set_ip(address)?;
    }
    Ok(())
}

/// Why there was no answer. The errors of the HTTP client are general; their sources have the cause. `authorities` names the
/// place of the trusted authorities.
pub(super) fn unanswered(error: &hyper_util::client::legacy::Error, authorities: &str) -> Problem {
    let mut cause: &dyn Error = error;
    while let Some(source) = cause.source() {
        if source.downcast_ref::<ssl::Error>().is_some() {
            return insecure(&cause.to_string(), authorities); // includes why a certificate was refused
        }
        cause = source;
    }
    if error.is_connect() {
        format!("it is unreachable: {cause}")
    } else {
        format!("it sent an invalid HTTP response: {cause}")
    }
}

fn insecure(error: &str, authorities: &str) -> Problem {
    let text = format!("TLS connection failed: {error}");
    match certificates::remedy(&text) {
        Some(remedy) => format!("{text}. Fix: {remedy} ({authorities})"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_certificate_is_an_error() {
        assert!(trusting(b"-----BEGIN NOTHING-----").is_err());
        assert!(authorities(Path::new("/absent/ca.pem")).is_err());
    }
}
