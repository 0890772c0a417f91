//! Every connection parameter of libpq is understood, or refused with what to do instead; none is ignored.

use super::Case;

/// What becomes of a parameter with this value.
enum Verdict {
    /// It is honoured.
    Understood,
    /// It is refused; the finding or its help holds this.
    Refused(&'static str),
}

use Verdict::{Refused, Understood};

/// All parameters of PostgreSQL 18's manual, 32.1.2, in its order; then two that libpq knows without a word in it. Several
/// values of one are several lines.
const PARAMETERS: &[(&str, &str, Verdict)] = &[
    ("host", "localhost", Understood),
    ("hostaddr", "127.0.0.1", Understood),
    ("port", "5432", Understood),
    ("dbname", "app", Understood),
    ("user", "relay", Understood),
    ("password", "x", Understood),
    ("passfile", "x", Refused("set [postgres] password_file")),
    ("require_auth", "scram-sha-256", Refused("channel_binding=require")),
    ("channel_binding", "require", Understood),
    ("channel_binding", "always", Refused("invalid value for `channel_binding`")),
    ("connect_timeout", "10", Understood),
    ("client_encoding", "UTF8", Understood),
    ("client_encoding", "LATIN1", Refused("the relay always speaks UTF8")),
    ("options", "-c geqo=off", Understood),
    ("application_name", "x", Understood),
    ("fallback_application_name", "x", Refused("set application_name")),
    ("keepalives", "1", Understood),
    ("keepalives_idle", "10", Understood),
    ("keepalives_interval", "10", Understood),
    ("keepalives_count", "3", Understood),
    ("tcp_user_timeout", "1000", Understood),
    ("replication", "off", Understood),
    ("replication", "database", Refused("replicates nothing")),
    ("gssencmode", "disable", Understood),
    ("gssencmode", "prefer", Understood),
    ("gssencmode", "require", Refused("encrypt with sslmode=verify-full")),
    ("sslmode", "verify-full", Understood),
    ("sslmode", "allow", Refused("choose prefer or verify-full")),
    ("sslnegotiation", "postgres", Understood),
    ("sslnegotiation", "direct", Refused("set sslmode to verify-full")), // since sslmode is prefer to localhost
    ("sslcompression", "0", Understood),
    ("sslcompression", "1", Refused("never compressed")),
    ("sslcert", "file", Refused("only one is given")),
    ("sslkey", "file", Refused("only one is given")),
    ("sslkeylogfile", "file", Refused("can read the events")),
    ("sslpassword", "x", Understood),
    ("sslcertmode", "allow", Understood),
    ("sslcertmode", "disable", Refused("sent when the server asks")),
    ("sslcertmode", "require", Refused("sent when the server asks")),
    ("sslrootcert", "file", Understood),
    ("sslrootcert", "system", Refused("set sslmode to verify-full")),
    ("sslcrl", "file", Refused("no certificate is verified")),
    ("sslcrldir", "/", Refused("no certificate is verified")),
    ("sslsni", "0", Understood),
    ("sslsni", "1", Understood),
    ("sslsni", "maybe", Refused("1, or 0")),
    ("requirepeer", "postgres", Refused("folder of the socket")),
    ("ssl_min_protocol_version", "TLSv1.3", Understood),
    ("ssl_min_protocol_version", "TLSv1", Refused("older versions are broken")),
    ("ssl_max_protocol_version", "TLSv1.2", Understood),
    ("ssl_max_protocol_version", "TLSv1.1", Refused("older versions are broken")),
    ("min_protocol_version", "3.0", Understood),
    ("min_protocol_version", "3.2", Refused("version 3.0")),
    ("max_protocol_version", "latest", Understood),
    ("krbsrvname", "postgres", Refused("use SCRAM or a client certificate")),
    ("gsslib", "gssapi", Refused("use SCRAM or a client certificate")),
    ("gssdelegation", "0", Understood),
    ("gssdelegation", "1", Refused("no GSSAPI")),
    ("scram_client_key", "x", Refused("set [postgres] password_file")),
    ("scram_server_key", "x", Refused("set [postgres] password_file")),
    ("service", "x", Refused("write the parameters of the service into the url")),
    ("servicefile", "x", Refused("write the parameters of the service into the url")),
    ("target_session_attrs", "read-write", Understood),
    ("target_session_attrs", "primary", Understood),
    ("target_session_attrs", "prefer-standby", Refused("the relay writes")),
    ("load_balance_hosts", "random", Understood),
    ("oauth_issuer", "x", Refused("SCRAM or a client certificate")),
    ("oauth_client_id", "x", Refused("SCRAM or a client certificate")),
    ("oauth_client_secret", "x", Refused("SCRAM or a client certificate")),
    ("oauth_scope", "x", Refused("SCRAM or a client certificate")),
    ("requiressl", "1", Refused("set sslmode=verify-full")),
    ("ssl", "true", Refused("set sslmode=verify-full")),
];

/// `options=-c geqo=off` as it stands in a URL.
fn encoded(value: &str) -> String {
    value.replace(' ', "%20").replace('=', "%3D")
}

fn case(url: &str) -> Case {
    let text = format!("[kafka]\nbootstrap_servers = 'k:9092'\n[postgres]\nurl = \"{url}\"\n");
    Case::new(&text).file("file", "")
}

#[test]
fn every_parameter_of_libpq_is_understood_or_refused_with_a_hint() {
    for (key, value, verdict) in PARAMETERS {
        let as_url = format!("postgres://localhost/?{key}={}", encoded(value));
        // Without a host of its own, the second form would lack one.
        let host = if ["host", "hostaddr"].contains(key) { "" } else { "host=localhost " };
        let as_pairs = format!("{host}{key}='{value}'");
        for url in [as_url, as_pairs] {
            let findings = case(&url).findings();
            match verdict {
                Understood => assert!(findings.is_empty(), "{url}: {}", findings.join("\n")),
                Refused(hint) => {
                    assert_eq!(findings.len(), 1, "{url}: {}", findings.join("\n"));
                    let finding = &findings[0];
                    assert!(finding.starts_with("error: "), "{url}: {finding}");
                    assert!(finding.contains(hint) && finding.contains("\n  help: "), "{url}: {finding}");
                }
            }
        }
    }
}

#[test]
fn what_is_understood_of_tls_reaches_the_connection() {
    use crate::config::{TlsMode, TlsVersion};
    let url = "postgres://db.example/?sslmode=verify-full&sslrootcert=file&sslcrl=file&sslcrldir=/&sslpassword=x&sslsni=0\
               &ssl_min_protocol_version=TLSv1.2&ssl_max_protocol_version=TLSv1.3&sslnegotiation=direct";
    let case = case(url);
    let tls = case.load().unwrap().postgres.connection().unwrap().tls;
    assert_eq!(tls.mode, TlsMode::VerifyFull);
    assert_eq!((tls.crl, tls.crl_dir), (Some(case.path("file")), Some("/".into())));
    assert_eq!(tls.key_password.unwrap().expose(), "x");
    assert_eq!((tls.version_min, tls.version_max), (TlsVersion::V1_2, Some(TlsVersion::V1_3)));
    assert!(!tls.names_host);
}

#[test]
fn what_contradicts_itself_is_found() {
    for (parameters, expected) in [
        ("sslmode=disable&channel_binding=require", "channel_binding is require, which needs TLS"),
        ("sslmode=disable&sslnegotiation=direct", "sslnegotiation is direct, which cannot do without TLS"),
        (
            "ssl_min_protocol_version=TLSv1.3&ssl_max_protocol_version=TLSv1.2",
            "ssl_max_protocol_version is below ssl_min_protocol_version",
        ),
    ] {
        let findings = case(&format!("postgres://localhost/?{parameters}")).findings();
        assert_eq!(findings.len(), 1, "{parameters}: {}", findings.join("\n"));
        assert!(findings[0].contains(expected), "{}", findings[0]);
    }
}
