//! Remedies for refused certificates, of PostgreSQL, Kafka and token endpoints.

/// OpenSSL's errors about certificates, each with a remedy: an imperative without a full stop. The first match counts.
const REMEDIES: &[(&str, &str)] = &[
    ("certificate has expired", "renew the server certificate, or correct the clock of this host"),
    (
        "certificate is not yet valid",
        "correct the clock of this host, or wait until the certificate is valid",
    ),
    (
        "hostname mismatch",
        "connect with a name that is in the certificate, or issue a certificate for this name",
    ),
    (
        "IP address mismatch",
        "connect with a name that is in the certificate, or issue a certificate for this address",
    ),
    ("certificate revoked", "issue a new certificate for the server: this one was revoked"),
    ("unable to get certificate CRL", "add the revocation list of every authority in the chain"),
    ("CRL has expired", "fetch the revocation lists again"),
    (
        "certificate verify failed",
        "trust the authority that signed the server certificate. If it is already trusted, check whether the \
         connection is intercepted",
    ),
    (
        "alert unknown ca",
        "issue the client certificate from an authority that the server trusts, or make the server trust this one",
    ),
    ("alert certificate expired", "renew the client certificate: it has expired"),
    ("alert certificate revoked", "issue a new client certificate: this one was revoked"),
    ("certificate required", "configure a client certificate and its key: the server requires one"),
    ("alert bad certificate", "configure a client certificate and key that the server accepts"),
    (
        "alert certificate unknown",
        "configure a valid client certificate from an authority that the server trusts",
    ),
    ("wrong version number", "check whether the port uses TLS"),
    ("packet length too long", "check whether the port uses TLS"),
];

/// The remedy for an error from OpenSSL, or `None` if it is not about certificates.
pub fn remedy(error: &str) -> Option<&'static str> {
    REMEDIES.iter().find(|(words, _)| error.contains(words)).map(|(_, remedy)| *remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_specific_reason_takes_precedence_over_the_general_one() {
        let of = |error: &str| remedy(error).unwrap_or_default();
        let failed =
            "error:0A000086:SSL routines:tls_post_process_server_certificate:certificate verify failed";
        assert!(of(&format!("{failed}: certificate has expired")).contains("renew"));
        assert!(of(&format!("{failed}: hostname mismatch")).contains("name"));
        assert!(of(&format!("{failed}: unable to get local issuer certificate")).contains("authority"));
        assert_eq!(remedy("connection refused"), None);
    }
}
