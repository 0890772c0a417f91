//! The connection that `[postgres]` defines.

use std::time::Duration;

use tokio_postgres::config::{ChannelBinding, Host, TargetSessionAttrs};

use super::Case;
use crate::config::{Connection, TlsMode};

fn case(postgres: &str) -> Case {
    Case::new(&format!("[kafka]\nbootstrap_servers = 'localhost:9092'\n[postgres]\n{postgres}\n"))
}

fn connection(postgres: &str) -> Connection {
    let case = case(postgres);
    case.load().unwrap_or_else(|findings| panic!("{postgres}: {findings}")).postgres.connection().unwrap()
}

#[test]
fn default_mode_is_verify_full_except_for_loopback_and_sockets() {
    for (url, mode) in [
        ("postgres://u@db.example/a", TlsMode::VerifyFull),
        ("postgres://u@localhost/a", TlsMode::Prefer),
        ("postgres://u@127.0.0.9/a", TlsMode::Prefer),
        ("postgres://u@[::1]/a", TlsMode::Prefer),
        ("postgres://u@%2Frun%2Fpostgresql/a", TlsMode::Prefer),
        ("host=/run/postgresql user=u", TlsMode::Prefer),
        ("postgres://u@localhost,db.example/a", TlsMode::VerifyFull),
        ("postgres://u@localhost.example/a", TlsMode::VerifyFull),
        ("host=localhost hostaddr=192.0.2.1 user=u", TlsMode::VerifyFull),
        ("hostaddr=127.0.0.1 user=u", TlsMode::Prefer),
    ] {
        let Connection { tls, .. } = connection(&format!("url = '{url}'"));
        assert_eq!(tls.mode, mode, "{url}");
    }
}

#[test]
fn a_name_that_the_server_would_change_is_a_finding() {
    let url = "url = 'postgres://u@localhost/a'\napplication_name = ";
    for (name, good) in [("x".repeat(48), true), ("x".repeat(49), false), ("relais-é".to_owned(), false)] {
        let findings = case(&format!("{url}'{name}'")).findings();
        assert_eq!(findings.is_empty(), good, "{findings:?}");
        let expected = "error: config.toml:5: [postgres] application_name is ";
        assert!(findings.iter().all(|finding| finding.starts_with(expected)), "{findings:?}");
    }
    let findings = case("url = 'postgres://u@localhost/a?application_name=a%0Ab'").findings();
    assert!(findings.len() == 1 && findings[0].starts_with("error: config.toml:4: "), "{findings:?}");
}

#[test]
fn a_weaker_mode_to_a_remote_host_is_a_warning() {
    for mode in ["disable", "prefer", "require", "verify-ca"] {
        let authority = if mode == "verify-ca" { "&sslrootcert=ca.pem" } else { "" };
        let case = case(&format!("url = 'postgres://u@db.example/a?sslmode={mode}{authority}'"));
        let case = case.file("ca.pem", "");
        let findings = case.findings();
        assert_eq!(findings.len(), 1, "{mode}");
        let expected = format!("warning: config.toml:4: sslmode is {mode}, and a host is remote, so ");
        assert!(findings[0].starts_with(&expected), "{}", findings[0]);
        assert!(case.load().is_ok());
    }
    assert!(case("url = 'postgres://u@localhost/a?sslmode=disable'").findings().is_empty());
}

/// It would trust all authorities of the system, without a comparison of the name.
#[test]
fn verify_ca_needs_the_file_of_an_authority() {
    case("url = 'postgres://u@db.example/a?sslmode=verify-ca'").assert_finding(
        "error: config.toml:4: sslmode is verify-ca without sslrootcert, so any server with a public certificate would be \
         accepted\n  4 | url = …\n  help: set sslmode to verify-full, or set sslrootcert",
    );
    assert!(case("url = 'postgres://u@db.example/a'\nsslmode = 'verify-ca'").load().is_err());
}

#[test]
fn values_that_the_kernel_refuses_are_findings() {
    for (parameter, good) in [
        ("keepalives_count=127", true),
        ("keepalives_count=128", false),
        ("keepalives_idle=32768", false),
        ("keepalives_interval=-1", false),
        ("keepalives_idle=0", true),
        ("keepalives_count=0", true),
        ("tcp_user_timeout=2147483648", false),
    ] {
        let findings = case(&format!("url = 'postgres://u@localhost/a?{parameter}'")).findings();
        assert_eq!(findings.is_empty(), good, "{parameter}: {findings:?}");
    }
}

#[test]
fn settings_override_the_tls_parameters_of_the_url() {
    let files = |case: Case| case.file("ca.pem", "").file("c.pem", "").file("c.key", "").file("ca2.pem", "");
    let url = "postgres://u@db.example/a?sslmode=verify-full&sslrootcert=ca.pem&sslcert=c.pem&sslkey=c.key";
    let from_url = files(case(&format!("url = '{url}'")));
    let tls = from_url.load().unwrap().postgres.connection().unwrap().tls;
    assert_eq!(tls.root_cert, Some(from_url.path("ca.pem")));
    assert_eq!(tls.client_cert, Some(from_url.path("c.pem")));
    assert_eq!(tls.client_key, Some(from_url.path("c.key")));
    let by_key = files(case(&format!("url = '{url}'\nsslmode = 'verify-ca'\nsslrootcert = 'ca2.pem'")));
    let tls = by_key.load().unwrap().postgres.connection().unwrap().tls;
    assert_eq!(tls.mode, TlsMode::VerifyCa);
    assert_eq!(tls.root_cert, Some(by_key.path("ca2.pem")));
    assert_eq!(tls.client_cert, Some(by_key.path("c.pem")));
}

#[test]
fn a_root_certificate_changes_require_to_verify_ca_as_in_libpq() {
    let case =
        case("url = 'postgres://u@db.example/a?sslmode=require&sslrootcert=ca.pem'").file("ca.pem", "");
    assert_eq!(case.load().unwrap().postgres.connection().unwrap().tls.mode, TlsMode::VerifyCa);
}

#[test]
fn sslrootcert_system_trusts_the_authorities_of_the_system() {
    let tls = connection("url = 'postgres://u@db.example/a?sslrootcert=system'").tls;
    assert_eq!((tls.mode, tls.root_cert), (TlsMode::VerifyFull, None));
}

#[test]
fn invalid_and_unsupported_parameters_are_findings() {
    for (url, expected) in [
        ("postgres://u@h/a?sslmode=allow", "sslmode has an invalid value"),
        ("postgres://u@h/a?sslmode=full", "sslmode has an invalid value"),
        ("postgres://u@h/a?sslrootcert=system&sslmode=require", "secure only with sslmode verify-full"),
        ("postgres://u@h/a?sslrootcert=absent.pem", "sslrootcert: cannot read absent.pem: "),
        ("postgres://u@h/a?sslcert=config.toml", "only one of sslcert and sslkey is set"),
        ("postgres://u@h/a?sslcrl=x", "sslcrl: cannot read x: "),
        ("postgres://u@h/a?passfile=x", "passfile is not supported by the relay"),
        ("postgres://u@h/a?slmode=require", "unknown connection parameter slmode"),
        ("postgres://u@h/a?target_session_attrs=standby", "target_session_attrs has an invalid value"),
        ("postgres://u@h/a?connect_timeout=soon", "connect_timeout has an invalid value"),
        ("postgres://u@h/a?channel_binding=yes", "invalid value for `channel_binding`"),
        ("postgres://u@h:port/a", "invalid value for `port`"),
        ("postgres://u@h/a?sslmode", "the query of the url is malformed"),
        ("postgres:///a", "[postgres] url has no host"),
        ("user=u dbname=a", "[postgres] url has no host"),
        ("", "neither a postgres:// URL nor a list of key=value"),
        ("localhost", "neither a postgres:// URL nor a list of key=value"),
    ] {
        let findings = case(&format!("url = '{url}'")).findings();
        assert_eq!(findings.len(), 1, "{url}: {}", findings.join("\n"));
        assert!(findings[0].starts_with("error: config.toml:4: "), "{url}: {}", findings[0]);
        assert!(findings[0].contains(expected), "{url}: {}", findings[0]);
    }
}

#[test]
fn all_problems_of_a_url_are_reported() {
    let findings = case("url = 'postgres://u@h/a?passfile=x&service=y&sslmod=z'").findings();
    assert_eq!(findings.len(), 3, "{}", findings.join("\n"));
}

#[test]
fn parameters_of_tokio_postgres_are_passed_unchanged() {
    let url = "postgres://us%40er:p%2Fw@a.example:1,b.example:2/da%20ta\
               ?options=-c%20search_path%3Dx%40y&target_session_attrs=read-write&channel_binding=require";
    let keys = r"user='us@er' password='p/w' host=a.example,b.example port=1,2 dbname='da ta'
                 options='-c search_path=x@y' target_session_attrs=read-write channel_binding = require";
    for text in [url, keys] {
        let config = connection(&format!("url = '''{text}'''")).config;
        assert_eq!(config.get_user(), Some("us@er"));
        assert_eq!(config.get_password(), Some(b"p/w".as_slice()));
        assert_eq!(config.get_dbname(), Some("da ta"));
        assert_eq!(config.get_hosts(), [Host::Tcp("a.example".into()), Host::Tcp("b.example".into())]);
        assert_eq!(config.get_ports(), [1, 2]);
        assert_eq!(config.get_options(), Some("-c search_path=x@y"));
        assert_eq!(config.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
        assert_eq!(config.get_channel_binding(), ChannelBinding::Require);
    }
}

#[test]
fn quotes_and_backslashes_are_unescaped() {
    let config = connection(r#"url = '''host=localhost user=u password='a\'b\\c d' '''"#).config;
    assert_eq!(config.get_password(), Some(br"a'b\c d".as_slice()));
}

#[test]
fn timeouts_have_defaults_and_the_units_of_libpq() {
    let config = connection("url = 'postgres://u@localhost/a'").config;
    assert_eq!(config.get_connect_timeout(), Some(&Duration::from_secs(10)));
    assert_eq!(config.get_keepalives_idle(), Duration::from_secs(10));
    assert_eq!(config.get_tcp_user_timeout(), Some(&Duration::from_secs(30)));
    assert_eq!(config.get_application_name(), Some("outbox-relay"));
    let url = "postgres://u@localhost/a?connect_timeout=3&tcp_user_timeout=2500&keepalives_count=7&application_name=x";
    let config = connection(&format!("url = '{url}'")).config;
    assert_eq!(config.get_connect_timeout(), Some(&Duration::from_secs(3)));
    assert_eq!(config.get_tcp_user_timeout(), Some(&Duration::from_millis(2500)));
    assert_eq!(config.get_keepalives_retries(), Some(7));
    assert_eq!(config.get_application_name(), Some("x"));
    let config = connection(&format!("url = '{url}'\nconnect_timeout = '1s'\napplication_name = 'y'")).config;
    assert_eq!(config.get_connect_timeout(), Some(&Duration::from_secs(1)));
    assert_eq!(config.get_application_name(), Some("y"));
}
