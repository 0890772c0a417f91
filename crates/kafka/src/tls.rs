//! TLS connections other than librdkafka's: HTTP requests for tokens, with verified certificates and without a proxy, and a
//! second handshake that shows why a broker's certificate was refused, which librdkafka does not report.

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Request, Response, Uri};
use hyper_openssl::client::legacy::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use openssl::error::ErrorStack;
use openssl::ssl::{self, ConnectConfiguration, HandshakeError, SslConnector, SslMethod, SslVersion};
use openssl::x509::store::{X509Store, X509StoreBuilder};
use openssl::x509::{X509, X509VerifyResult};
use rdkafka::ClientConfig;
use settings::certificates;
use std::error::Error;
use std::io;
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

pub(crate) struct Https<'a> {
    /// The trusted authorities; `None` for those of the system.
    pub ca_location: Option<&'a Path>,
    /// The place of the trusted authorities, for errors.
    pub authorities: &'a str,
    pub connect_timeout: Option<Duration>,
    /// The largest body of a response.
    pub bytes_max: usize,
}

impl Https<'_> {
    /// Sends a request on a connection of its own, with TLS if the URL is `https`. Does not follow redirects, which could send
    /// a secret to another host. An error contains nothing of the response.
    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Bytes>, String> {
        let connector = self.connector()?;
        let client = Client::builder(TokioExecutor::new()).build(connector);
        let response = client.request(request).await;
        let (head, body) = response.map_err(|error| unanswered(&error, self.authorities))?.into_parts();
        let body = Limited::new(body, self.bytes_max).collect().await;
        let body = body
            .map_err(|_| format!("its response was truncated or has more than {} bytes", self.bytes_max))?;
        Ok(Response::from_parts(head, body.to_bytes()))
    }

    fn connector(&self) -> Result<HttpsConnector<HttpConnector>, String> {
        let unusable = |error: ErrorStack| format!("TLS cannot be set up: {error}");
        let mut tls = SslConnector::builder(SslMethod::tls_client()).map_err(unusable)?;
        tls.set_min_proto_version(Some(SslVersion::TLS1_2)).map_err(unusable)?;
        if let Some(path) = self.ca_location {
            let invalid = |error: io::Error| format!("ca_location: {} is invalid: {error}", path.display());
            let trusted = std::fs::read(path).and_then(|pem| authorities(&pem));
            tls.set_cert_store(trusted.map_err(invalid)?);
        }
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(self.connect_timeout);
        let mut connector = HttpsConnector::with_connector(tcp, tls).map_err(unusable)?;
        connector.set_callback(verify_ipv6);
        Ok(connector)
    }
}

/// Trusts only these certificate authorities. An error never contains any of the text.
fn authorities(pem: &[u8]) -> io::Result<X509Store> {
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
fn unanswered(error: &hyper_util::client::legacy::Error, authorities: &str) -> String {
    let mut cause: &dyn Error = error;
    while let Some(source) = cause.source() {
        if source.downcast_ref::<ssl::Error>().is_some() {
            let text = format!("TLS connection failed: {cause}"); // includes why a certificate was refused
            return match certificates::remedy(&text) {
                Some(remedy) => format!("{text}. Fix: {remedy} ({authorities})"),
                None => text,
            };
        }
        cause = source;
    }
    if error.is_connect() {
        format!("it is unreachable: {cause}")
    } else {
        format!("it sent an invalid HTTP response: {cause}")
    }
}

/// The limit for each step of the second handshake.
const TIMEOUT: Duration = Duration::from_secs(3);

const REFUSED: &str = "certificate verify failed";

/// What librdkafka adds if it notices in the handshake that the broker has closed the connection, but not if it does a moment
/// later.
const PLAINTEXT: &str = "connecting to a PLAINTEXT broker listener?";

/// Adds the probable cause to an error about a handshake, and a remedy if it is about a certificate. Returns other errors
/// unchanged. Blocks for up to a few seconds.
pub(crate) fn explained(error: &str, config: &ClientConfig) -> String {
    let closed = error.contains("Disconnected") && error.contains("SSL_HANDSHAKE");
    let verdict = match error.contains(REFUSED) {
        true => broker(error).and_then(|at| verdict(at, config)),
        false => (closed && !error.contains(PLAINTEXT)).then_some(PLAINTEXT),
    };
    let text = verdict.map_or_else(|| error.to_owned(), |verdict| format!("{error}: {verdict}"));
    match certificates::remedy(&text) {
        Some(remedy) => format!("{text}. Fix: {remedy}"),
        None => text,
    }
}

/// Host and port of the broker in an error such as `sasl_ssl://kafka-1:9093/bootstrap: SSL handshake failed: ...`.
fn broker(error: &str) -> Option<(&str, u16)> {
    let (_, rest) = error.split_once("ssl://")?;
    let (host, port) = rest.split('/').next()?.rsplit_once(':')?;
    Some((host, port.parse().ok()?))
}

fn verdict((host, port): (&str, u16), config: &ClientConfig) -> Option<&'static str> {
    let mut builder = SslConnector::builder(SslMethod::tls_client()).ok()?;
    let trusted = match (config.get("ssl.ca.location"), config.get("ssl.ca.pem")) {
        (Some("probe"), _) | (None, None) => None,
        (Some(path), _) => Some(authorities(&std::fs::read(path).ok()?).ok()?),
        (None, Some(pem)) => Some(authorities(pem.as_bytes()).ok()?),
    };
    if let Some(trusted) = trusted {
        builder.set_cert_store(trusted);
    }
    let mut connect = builder.build().configure().ok()?;
    let identification = config.get("ssl.endpoint.identification.algorithm");
    connect.set_verify_hostname(identification.is_none_or(|name| !name.eq_ignore_ascii_case("none")));
    let plain_host = host.trim_start_matches('[').trim_end_matches(']');
    let stream = (plain_host, port).to_socket_addrs().ok()?.find_map(|address| {
        let stream = TcpStream::connect_timeout(&address, TIMEOUT).ok()?;
        stream.set_read_timeout(Some(TIMEOUT)).ok()?;
        stream.set_write_timeout(Some(TIMEOUT)).ok()?;
        Some(stream)
    })?;
    match connect.connect(plain_host, stream) {
        Err(HandshakeError::Failure(broken) | HandshakeError::WouldBlock(broken)) => {
            let verdict = broken.ssl().verify_result();
            (verdict != X509VerifyResult::OK).then(|| verdict.error_string())
        }
        Ok(_) | Err(HandshakeError::SetupFailure(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_broker_is_the_one_that_the_error_names() {
        let error = "ssl://kafka-1.example:9093/bootstrap: SSL handshake failed: ssl://x:1/2";
        assert_eq!(broker(error), Some(("kafka-1.example", 9093)));
        assert_eq!(broker("sasl_ssl://[::1]:9093/1: SSL handshake failed"), Some(("[::1]", 9093)));
        assert_eq!(broker("ssl://kafka"), None);
    }

    #[test]
    fn a_connection_that_is_closed_during_the_handshake_may_lead_to_a_listener_without_tls() {
        let error = "ssl://127.0.0.1:1/bootstrap: Disconnected: SSL connection closed by peer (after 25ms in state SSL_HANDSHAKE)";
        assert_eq!(explained(error, &ClientConfig::new()), format!("{error}: {PLAINTEXT}"));
        let complete = format!(
            "ssl://127.0.0.1:1/bootstrap: SSL handshake failed: Disconnected: {PLAINTEXT} (after 5ms in state SSL_HANDSHAKE)"
        );
        assert_eq!(explained(&complete, &ClientConfig::new()), complete);
    }

    #[test]
    fn an_error_that_is_not_about_a_certificate_is_unchanged() {
        let error = "ssl://127.0.0.1:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused";
        assert_eq!(explained(error, &ClientConfig::new()), error);
    }

    #[test]
    fn a_text_without_a_certificate_is_an_error() {
        assert!(authorities(b"-----BEGIN NOTHING-----").is_err());
    }
}
