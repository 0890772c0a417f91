//! Private certificates for a test: authorities, the certificates that they sign, and revocation lists.

use openssl::asn1::{Asn1Integer, Asn1Time};
use openssl::bn::BigNum;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::sign::Signer;
use openssl::symm::Cipher;
use openssl::x509::extension::{BasicConstraints, SubjectAlternativeName};
use openssl::x509::{X509, X509Builder, X509Name, X509NameBuilder};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const DAY_SECONDS: i64 = 24 * 3_600;

/// A certificate and its key.
pub struct Identity {
    pub cert: X509,
    pub key: PKey<Private>,
}

/// A new self-signed authority.
pub fn authority(name: &str) -> Identity {
    sign(name, &[], None, (-DAY_SECONDS, DAY_SECONDS))
}

impl Identity {
    /// A certificate for a server of these names.
    pub fn server(&self, names: &[&str]) -> Identity {
        sign(names[0], names, Some(self), (-DAY_SECONDS, DAY_SECONDS))
    }

    /// A server certificate that expired yesterday.
    pub fn expired_server(&self, names: &[&str]) -> Identity {
        sign(names[0], names, Some(self), (-2 * DAY_SECONDS, -DAY_SECONDS))
    }

    /// A certificate for a client of this name.
    pub fn client(&self, name: &str) -> Identity {
        sign(name, &[], Some(self), (-DAY_SECONDS, DAY_SECONDS))
    }

    /// The certificate in PEM form.
    pub fn cert_pem(&self) -> Vec<u8> {
        self.cert.to_pem().unwrap()
    }

    /// The key in PEM form.
    pub fn key_pem(&self) -> Vec<u8> {
        self.key.private_key_to_pem_pkcs8().unwrap()
    }

    /// The key in PEM form, encrypted.
    pub fn encrypted_key_pem(&self, password: &str) -> Vec<u8> {
        self.key.private_key_to_pem_pkcs8_passphrase(Cipher::aes_256_cbc(), password.as_bytes()).unwrap()
    }

    /// Key and certificate in one file, the format that Kafka's brokers require.
    pub fn store_pem(&self) -> Vec<u8> {
        [self.key_pem(), self.cert_pem()].concat()
    }

    /// The certificate revocation list of this authority, in PEM form.
    pub fn revocation_list(&self, revoked: &[&Identity]) -> Vec<u8> {
        const ECDSA_WITH_SHA256: &[u8] = &[0x30, 10, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
        let since = der(0x17, b"200101000000Z");
        let entries: Vec<u8> =
            revoked.iter().flat_map(|one| der(0x30, &[serial(one), since.clone()].concat())).collect();
        let entries = if entries.is_empty() { Vec::new() } else { der(0x30, &entries) };
        let issuer = self.cert.subject_name().to_der().unwrap();
        let until = der(0x17, b"490101000000Z");
        let list = [vec![2, 1, 1], ECDSA_WITH_SHA256.to_vec(), issuer, since, until, entries].concat();
        let list = der(0x30, &list);
        let mut signer = Signer::new(MessageDigest::sha256(), &self.key).unwrap();
        let signature = signer.sign_oneshot_to_vec(&list).unwrap();
        let signature = der(3, &[vec![0], signature].concat());
        let whole = der(0x30, &[list, ECDSA_WITH_SHA256.to_vec(), signature].concat());
        let text = openssl::base64::encode_block(&whole);
        let lines: Vec<&str> =
            text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
        format!("-----BEGIN X509 CRL-----\n{}\n-----END X509 CRL-----\n", lines.join("\n")).into_bytes()
    }
}

/// A folder of files that are replaced atomically, as rotation tools do.
pub struct Files(tempfile::TempDir);

impl Files {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Writes a file, or replaces it.
    pub fn put(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let (path, new) = (self.path(name), self.0.path().join(format!(".{name}")));
        std::fs::write(&new, content).unwrap();
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::rename(&new, &path).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn folder(&self) -> &Path {
        self.0.path()
    }
}

fn sign(name: &str, hosts: &[&str], issuer: Option<&Identity>, (from, until): (i64, i64)) -> Identity {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    let key = PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap();
    let subject = common_name(name);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
    let mut cert = X509Builder::new().unwrap();
    cert.set_version(2).unwrap();
    cert.set_serial_number(&Asn1Integer::from_bn(&BigNum::from_u32(fastrand::u32(1..)).unwrap()).unwrap())
        .unwrap();
    cert.set_subject_name(&subject).unwrap();
    cert.set_issuer_name(issuer.map_or(&*subject, |issuer| issuer.cert.subject_name())).unwrap();
    cert.set_pubkey(&key).unwrap();
    cert.set_not_before(&Asn1Time::from_unix(now + from).unwrap()).unwrap();
    cert.set_not_after(&Asn1Time::from_unix(now + until).unwrap()).unwrap();
    if issuer.is_none() {
        cert.append_extension(BasicConstraints::new().critical().ca().build().unwrap()).unwrap();
    }
    if !hosts.is_empty() {
        let mut names = SubjectAlternativeName::new();
        hosts.iter().for_each(|host| _ = names.dns(host));
        let names = names.build(&cert.x509v3_context(issuer.map(|issuer| &*issuer.cert), None));
        cert.append_extension(names.unwrap()).unwrap();
    }
    cert.sign(issuer.map_or(&key, |issuer| &issuer.key), MessageDigest::sha256()).unwrap();
    Identity { cert: cert.build(), key }
}

fn common_name(name: &str) -> X509Name {
    let mut subject = X509NameBuilder::new().unwrap();
    subject.append_entry_by_text("CN", name).unwrap();
    subject.build()
}

/// An encoded ASN.1 value.
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = match content.len() {
        short @ 0..128 => vec![short as u8],
        long => vec![0x82, (long >> 8) as u8, long as u8],
    };
    [vec![tag], length, content.to_vec()].concat()
}

fn serial(identity: &Identity) -> Vec<u8> {
    let mut number = identity.cert.serial_number().to_bn().unwrap().to_vec();
    if number[0] >= 0x80 {
        number.insert(0, 0);
    }
    der(2, &number)
}
