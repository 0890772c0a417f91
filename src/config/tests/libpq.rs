//! Every connection parameter of libpq is supported, or rejected with help. None is ignored.

use super::Case;

enum Expected {
    Supported,
    /// Rejected. The finding or its help contains this.
    Rejected(&'static str),
}

use Expected::{Rejected, Supported};

/// All parameters in section 32.1.2 of the PostgreSQL 18 manual, then two undocumented ones.
const PARAMETERS: &[(&str, &str, Expected)] = &[
    ("host", "localhost", Supported),
    ("hostaddr", "127.0.0.1", Supported),
    ("port", "5432", Supported),
    ("dbname", "app", Supported),
    ("user", "relay", Supported),
    ("password", "x", Supported),
    ("passfile", "x", Rejected("set [postgres] password_file")),
    ("require_auth", "scram-sha-256", Supported),
    ("require_auth", "!password,!md5", Supported),
    ("require_auth", "gss", Rejected("one or more of password, md5, scram-sha-256 and none")),
    ("channel_binding", "require", Supported),
    ("channel_binding", "always", Rejected("invalid value for `channel_binding`")),
    ("connect_timeout", "10", Supported),
    ("client_encoding", "UTF8", Supported),
    ("client_encoding", "LATIN1", Rejected("the relay always uses UTF8")),
    ("options", "-c geqo=off", Supported),
    ("application_name", "x", Supported),
    ("fallback_application_name", "x", Rejected("set application_name")),
    ("keepalives", "1", Supported),
    ("keepalives_idle", "10", Supported),
    ("keepalives_interval", "10", Supported),
    ("keepalives_count", "3", Supported),
    ("tcp_user_timeout", "1000", Supported),
    ("replication", "off", Supported),
    ("replication", "database", Rejected("does not use replication")),
    ("gssencmode", "disable", Supported),
    ("gssencmode", "prefer", Supported),
    ("gssencmode", "require", Rejected("set sslmode=verify-full to encrypt")),
    ("sslmode", "verify-full", Supported),
    ("sslmode", "allow", Rejected("set prefer or verify-full")),
    ("sslnegotiation", "postgres", Supported),
    ("sslnegotiation", "direct", Rejected("set sslmode to verify-full")), // sslmode is prefer for localhost
    ("sslcompression", "0", Supported),
    ("sslcompression", "1", Rejected("compression is insecure")),
    ("sslcert", "file", Rejected("only one of")),
    ("sslkey", "file", Rejected("only one of")),
    ("sslkeylogfile", "file", Rejected("can read the events")),
    ("sslpassword", "x", Supported),
    ("sslcertmode", "allow", Supported),
    ("sslcertmode", "disable", Rejected("if it is set and the server requests it")),
    ("sslcertmode", "require", Rejected("if it is set and the server requests it")),
    ("sslrootcert", "file", Supported),
    ("sslrootcert", "system", Rejected("set sslmode to verify-full")),
    ("sslcrl", "file", Rejected("have no effect")),
    ("sslcrldir", "/", Rejected("have no effect")),
    ("sslsni", "0", Supported),
    ("sslsni", "1", Supported),
    ("sslsni", "maybe", Rejected("1, or 0")),
    ("requirepeer", "postgres", Rejected("no host is a Unix socket")),
    ("ssl_min_protocol_version", "TLSv1.3", Supported),
    ("ssl_min_protocol_version", "TLSv1", Rejected("older versions are insecure")),
    ("ssl_max_protocol_version", "TLSv1.2", Supported),
    ("ssl_max_protocol_version", "TLSv1.1", Rejected("older versions are insecure")),
    ("min_protocol_version", "3.0", Supported),
    ("min_protocol_version", "3.2", Rejected("version 3.0")),
    ("max_protocol_version", "latest", Supported),
    ("krbsrvname", "postgres", Rejected("use SCRAM or a client certificate")),
    ("gsslib", "gssapi", Rejected("use SCRAM or a client certificate")),
    ("gssdelegation", "0", Supported),
    ("gssdelegation", "1", Rejected("does not support GSSAPI")),
    ("scram_client_key", "x", Rejected("set [postgres] password_file")),
    ("scram_server_key", "x", Rejected("set [postgres] password_file")),
    ("service", "x", Rejected("add the parameters of the service to the url")),
    ("servicefile", "x", Rejected("add the parameters of the service to the url")),
    ("target_session_attrs", "read-write", Supported),
    ("target_session_attrs", "primary", Supported),
    ("target_session_attrs", "prefer-standby", Rejected("the relay needs to write")),
    ("load_balance_hosts", "random", Supported),
    ("oauth_issuer", "x", Rejected("SCRAM or a client certificate")),
    ("oauth_client_id", "x", Rejected("SCRAM or a client certificate")),
    ("oauth_client_secret", "x", Rejected("SCRAM or a client certificate")),
    ("oauth_scope", "x", Rejected("SCRAM or a client certificate")),
    ("requiressl", "1", Rejected("set sslmode=verify-full")),
    ("ssl", "true", Rejected("set sslmode=verify-full")),
];

/// `-c geqo=off`, encoded for a URL.
fn encoded(value: &str) -> String {
    value.replace(' ', "%20").replace('=', "%3D")
}

fn case(url: &str) -> Case {
    let text = format!("[kafka]\nbootstrap_servers = 'localhost:9092'\n[postgres]\nurl = \"{url}\"\n");
    Case::new(&text).file("file", "")
}

#[test]
fn every_parameter_of_libpq_is_supported_or_rejected_with_help() {
    for (key, value, expected) in PARAMETERS {
        let as_url = format!("postgres://localhost/?{key}={}", encoded(value));
        // The second form needs a host.
        let host = if ["host", "hostaddr"].contains(key) { "" } else { "host=localhost " };
        let as_pairs = format!("{host}{key}='{value}'");
        for url in [as_url, as_pairs] {
            let findings = case(&url).findings();
            match expected {
                Supported => assert!(findings.is_empty(), "{url}: {}", findings.join("\n")),
                Rejected(text) => {
                    assert_eq!(findings.len(), 1, "{url}: {}", findings.join("\n"));
                    let finding = &findings[0];
                    assert!(finding.starts_with("error: "), "{url}: {finding}");
                    assert!(finding.contains(text) && finding.contains("\n  help: "), "{url}: {finding}");
                }
            }
        }
    }
}

#[test]
fn tls_parameters_reach_the_connection() {
    use crate::config::TlsMode;
    use openssl::ssl::SslVersion;
    let url = "postgres://db.example/?sslmode=verify-full&sslrootcert=file&sslcrl=file&sslcrldir=/&sslpassword=x&sslsni=0\
               &ssl_min_protocol_version=TLSv1.2&ssl_max_protocol_version=TLSv1.3&sslnegotiation=direct";
    let case = case(url);
    let tls = case.load().unwrap().postgres.connection().unwrap().tls;
    assert_eq!(tls.mode, TlsMode::VerifyFull);
    assert_eq!((tls.crl, tls.crl_dir), (Some(case.path("file")), Some("/".into())));
    assert_eq!(tls.key_password.unwrap().expose(), "x");
    assert_eq!((tls.version_min, tls.version_max), (Some(SslVersion::TLS1_2), Some(SslVersion::TLS1_3)));
    assert!(tls.hides_host);
}

#[test]
fn contradicting_parameters_are_findings() {
    for (parameters, expected) in [
        ("sslmode=disable&channel_binding=require", "channel_binding is require, which needs TLS"),
        ("sslmode=disable&sslnegotiation=direct", "sslnegotiation is direct, which needs TLS"),
        (
            "ssl_min_protocol_version=TLSv1.3&ssl_max_protocol_version=TLSv1.2",
            "ssl_max_protocol_version is lower than ssl_min_protocol_version",
        ),
    ] {
        let findings = case(&format!("postgres://localhost/?{parameters}")).findings();
        assert_eq!(findings.len(), 1, "{parameters}: {}", findings.join("\n"));
        assert!(findings[0].contains(expected), "{}", findings[0]);
    }
}
