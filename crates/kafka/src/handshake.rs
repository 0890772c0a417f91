//! Why a broker's certificate was refused. librdkafka does not report the reason, so this repeats the handshake.

use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use openssl::ssl::{HandshakeError, SslConnector, SslMethod};
use openssl::x509::X509VerifyResult;
use rdkafka::ClientConfig;

use crate::oauth::{authorities, trusting};
use settings::certificates;

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
        (Some(path), _) => Some(authorities(Path::new(path)).ok()?),
        (None, Some(pem)) => Some(trusting(pem.as_bytes()).ok()?),
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
}
