//! Handshakes with a server whose certificate for `localhost` is signed by a test authority.

use super::*;
use openssl::asn1::Asn1Time;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::ssl::{SslAcceptor, SslContextBuilder};
use openssl::symm::Cipher;
use openssl::x509::extension::{BasicConstraints, SubjectAlternativeName};
use openssl::x509::{X509Builder, X509NameBuilder};
use std::net::TcpListener;
use std::{fs, thread};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};

/// A certificate with its key.
struct Identity {
    cert: X509,
    key: PKey<Private>,
}

/// A certificate for `name`, signed by `issuer` or by itself.
fn identity(name: &str, issuer: Option<&Identity>) -> Identity {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    let key = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
    let mut subject = X509NameBuilder::new().unwrap();
    subject.append_entry_by_text("CN", name).unwrap();
    let subject = subject.build();
    let mut cert = X509Builder::new().unwrap();
    cert.set_version(2).unwrap();
    cert.set_subject_name(&subject).unwrap();
    cert.set_issuer_name(issuer.map_or(&*subject, |issuer| issuer.cert.subject_name())).unwrap();
    cert.set_pubkey(&key).unwrap();
    cert.set_not_before(&Asn1Time::days_from_now(0).unwrap()).unwrap();
    cert.set_not_after(&Asn1Time::days_from_now(2).unwrap()).unwrap();
    if issuer.is_none() {
        cert.append_extension(BasicConstraints::new().critical().ca().build().unwrap()).unwrap();
    }
    let names =
        SubjectAlternativeName::new().dns(name).build(&cert.x509v3_context(issuer.map(|i| &*i.cert), None));
    cert.append_extension(names.unwrap()).unwrap();
    cert.sign(issuer.map_or(&key, |issuer| &issuer.key), MessageDigest::sha256()).unwrap();
    Identity { cert: cert.build(), key }
}

/// The result of a handshake with `host`. With `client_ca`, the server requires a client certificate signed by it.
async fn handshake(
    tls: &Tls,
    server: &Identity,
    host: &str,
    client_ca: Option<&Identity>,
) -> Result<(), String> {
    let connector = connector(tls).map_err(|error| error.to_string())?;
    handshake_through(connector, server, host, client_ca).await
}

async fn handshake_through(
    mut connector: MakeTlsConnector,
    server: &Identity,
    host: &str,
    client_ca: Option<&Identity>,
) -> Result<(), String> {
    let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls_server()).unwrap();
    // In TLS 1.3, the client would see a rejected certificate only after the handshake.
    acceptor.set_max_proto_version(Some(SslVersion::TLS1_2)).unwrap();
    acceptor.set_certificate(&server.cert).unwrap();
    acceptor.set_private_key(&server.key).unwrap();
    if let Some(ca) = client_ca {
        demand_client_certificate(&mut acceptor, ca);
    }
    let acceptor = acceptor.build();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || acceptor.accept(listener.accept().unwrap().0).is_ok());

    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let connector = MakeTlsConnect::<tokio::net::TcpStream>::make_tls_connect(&mut connector, host).unwrap();
    let result = connector.connect(stream).await.map(drop).map_err(|error| error.to_string());
    server.join().unwrap();
    result
}

fn demand_client_certificate(acceptor: &mut SslContextBuilder, ca: &Identity) {
    acceptor.set_verify(SslVerifyMode::PEER | SslVerifyMode::FAIL_IF_NO_PEER_CERT);
    acceptor.cert_store_mut().add_cert(ca.cert.clone()).unwrap();
}

fn tls(mode: TlsMode, root_cert: Option<&Path>) -> Tls {
    Tls { root_cert: root_cert.map(Path::to_owned), mode, ..Tls::default() }
}

#[tokio::test]
async fn each_mode_accepts_the_same_servers_as_libpq() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, other) = (identity("our authority", None), identity("other authority", None));
    let root = folder.path().join("root.pem");
    fs::write(&root, ours.cert.to_pem().unwrap()).unwrap();
    let (good, foreign) = (identity("localhost", Some(&ours)), identity("localhost", Some(&other)));
    let root = Some(root.as_path());

    use TlsMode::*;
    // Mode, root certificate, and whether it accepts: the right server, another host, another authority.
    for (mode, root, expected) in [
        (Prefer, None, [true, true, true]),
        (Prefer, root, [true, true, true]),
        (Require, None, [true, true, true]),
        (Require, root, [true, true, false]),
        (VerifyCa, root, [true, true, false]),
        (VerifyFull, root, [true, false, false]),
        // The system's authorities signed none of these.
        (VerifyCa, None, [false, false, false]),
        (VerifyFull, None, [false, false, false]),
    ] {
        let tls = tls(mode, root);
        let accepted = [
            handshake(&tls, &good, "localhost", None).await.is_ok(),
            handshake(&tls, &good, "db.example.com", None).await.is_ok(),
            handshake(&tls, &foreign, "localhost", None).await.is_ok(),
        ];
        assert_eq!(accepted, expected, "{mode:?}, root certificate {root:?}");
    }
}

#[tokio::test]
async fn certificates_are_reloaded_for_each_connection() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (identity("old authority", None), identity("new authority", None));
    let root = folder.path().join("root.pem");
    let tls = tls(TlsMode::VerifyFull, Some(&root));
    let server = identity("localhost", Some(&new));
    let cached = CachedConnector::default();
    fs::write(&root, old.cert.to_pem().unwrap()).unwrap();
    assert!(handshake_through(cached.get(&tls).unwrap(), &server, "localhost", None).await.is_err());
    fs::write(&root, [old.cert.to_pem().unwrap(), new.cert.to_pem().unwrap()].concat()).unwrap();
    assert_eq!(handshake_through(cached.get(&tls).unwrap(), &server, "localhost", None).await, Ok(()));
    fs::remove_file(&root).unwrap();
    assert!(cached.get(&tls).is_err(), "a connector whose file is gone is not used");
}

#[tokio::test]
async fn a_client_certificate_is_presented() {
    let folder = tempfile::tempdir().unwrap();
    let ca = identity("authority", None);
    let (server, client) = (identity("localhost", Some(&ca)), identity("relay", Some(&ca)));
    let [root, cert, key] = ["root.pem", "cert.pem", "key.pem"].map(|name| folder.path().join(name));
    fs::write(&root, ca.cert.to_pem().unwrap()).unwrap();
    fs::write(&cert, client.cert.to_pem().unwrap()).unwrap();
    fs::write(&key, client.key.private_key_to_pem_pkcs8().unwrap()).unwrap();

    let mut tls = tls(TlsMode::VerifyFull, Some(&root));
    assert!(handshake(&tls, &server, "localhost", Some(&ca)).await.is_err());
    tls.client_cert = Some(cert);
    tls.client_key = Some(key);
    assert_eq!(handshake(&tls, &server, "localhost", Some(&ca)).await, Ok(()));
}

#[test]
fn errors_name_the_file_and_the_problem() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        path
    };
    let (one, two) = (identity("one", None), identity("two", None));
    let cert = file("cert.pem", &one.cert.to_pem().unwrap());
    let wrong_key = file("wrong.pem", &two.key.private_key_to_pem_pkcs8().unwrap());
    let encrypted = one.key.private_key_to_pem_pkcs8_passphrase(Cipher::aes_256_cbc(), b"secret").unwrap();
    let encrypted = file("encrypted.pem", &encrypted);
    let empty = file("empty.pem", b"");
    let missing = folder.path().join("missing.pem");

    let refused = |root: Option<&PathBuf>, cert: Option<&PathBuf>, key: Option<&PathBuf>| {
        let [root_cert, client_cert, client_key] = [root, cert, key].map(Option::<&PathBuf>::cloned);
        match connector(&Tls {
            root_cert,
            client_cert,
            client_key,
            mode: TlsMode::VerifyFull,
            ..Tls::default()
        }) {
            Ok(_) => panic!("accepted"),
            Err(error) => error.to_string(),
        }
    };
    for (error, parts) in [
        (refused(Some(&missing), None, None), ["root certificate", "missing.pem", "cannot be read"]),
        (refused(Some(&empty), None, None), ["root certificate", "empty.pem", "PEM"]),
        (refused(Some(&wrong_key), None, None), ["root certificate", "wrong.pem", "PEM"]),
        (refused(None, Some(&cert), Some(&wrong_key)), ["client key", "wrong.pem", "does not match"]),
        (refused(None, Some(&cert), Some(&encrypted)), ["client key", "encrypted.pem", "unencrypted"]),
        (refused(None, Some(&cert), Some(&missing)), ["client key", "missing.pem", "cannot be read"]),
    ] {
        assert!(parts.iter().all(|part| error.contains(part)), "{error}: {parts:?}");
    }
}

fn built(cached: &CachedConnector) -> Instant {
    cached.0.lock().unwrap().as_ref().unwrap().built
}

#[test]
fn a_connector_is_built_again_only_after_a_change() {
    let folder = tempfile::tempdir().unwrap();
    let cached = CachedConnector::default();
    let mut tls = Tls { mode: TlsMode::Prefer, ..Tls::default() };
    cached.get(&tls).unwrap();
    let first = built(&cached);
    cached.get(&tls).unwrap();
    assert_eq!(built(&cached), first, "nothing has changed");
    tls.hides_host = true;
    cached.get(&tls).unwrap();
    let second = built(&cached);
    assert_ne!(second, first, "a setting has changed");
    tls.crl_dir = Some(folder.path().to_owned());
    cached.get(&tls).unwrap();
    let third = built(&cached);
    cached.get(&tls).unwrap();
    assert_ne!(built(&cached), third, "a folder of revocation lists is read at each connect");
}

#[test]
fn the_authorities_of_the_system_are_read_again_after_a_while() {
    let cached = CachedConnector::default();
    for (mode, again) in [(TlsMode::Require, false), (TlsMode::VerifyFull, true)] {
        let tls = Tls { mode, ..Tls::default() };
        cached.get(&tls).unwrap();
        let long_ago = Instant::now().checked_sub(SYSTEM_CACHED_FOR).unwrap();
        cached.0.lock().unwrap().as_mut().unwrap().built = long_ago;
        cached.get(&tls).unwrap();
        assert_eq!(built(&cached) != long_ago, again, "{mode:?}");
    }
}
