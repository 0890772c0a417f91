//! Tokens that are signed with credentials from real HTTP endpoints on loopback.
//!
//! The environment of a process cannot be changed safely, so each case runs in a process of its own: this test binary with
//! only the test [`runs_in_a_process_of_its_own`].

use super::signer;
use crate::options::Aws;
use aws_credential_types::Credentials;
use openssl::base64::decode_block;
use openssl::hash::MessageDigest;
use openssl::pkey::PKey;
use openssl::sha::sha256;
use openssl::sign;
use server::{ASSUMED, Answer, AwsServer, Key, MARK, OWN, WEB_IDENTITY, nowhere};
use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

// It is shared with the integration tests.
#[allow(dead_code, unreachable_pub)]
#[path = "../../../../tests/support/aws.rs"]
mod server;

const ROLE: &str = "arn:aws:iam::123456789012:role/outbox-relay";
const REGION: &str = "eu-central-1";
const TEST_ROLE: &str = "OUTBOX_RELAY_TEST_ROLE";

/// The parameters of a token, still encoded.
type Parameters = BTreeMap<String, String>;

#[test]
#[ignore = "run by the other tests"]
fn runs_in_a_process_of_its_own() {
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).finish();
    let role_arn = std::env::var(TEST_ROLE).ok();
    let settings = Aws {
        region: REGION.to_owned(),
        external_id: role_arn.as_ref().map(|_| "the/external:id".to_owned()),
        role_session_name: "session@host".to_owned(),
        role_arn,
    };
    let issued = tracing::subscriber::with_default(subscriber, signer(settings).request);
    match issued {
        Ok(issued) => println!("\nissued {} {}", issued.lifetime.as_secs(), issued.token.expose()),
        Err(error) => println!("\nrefused {error}"),
    }
}

/// Lifetime and parameters of the token, or the error, of a process with these variables. Neither a log line nor an error may
/// contain a secret.
fn request(role: Option<&str>, environment: &[(&str, String)]) -> Result<(u64, Parameters), String> {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "msk::tests::runs_in_a_process_of_its_own", "--ignored", "--nocapture"]);
    child.env_clear().envs(environment.iter().map(|(name, value)| (*name, value)));
    child.envs(role.map(|role| (TEST_ROLE, role)));
    let output = child.output().unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    let line = |start: &str| said.lines().find_map(|line| line.strip_prefix(start));
    assert!(!said.contains(MARK) && !said.contains("TRACE") && !said.contains("WARN"), "{said}");
    match (line("issued "), line("refused ")) {
        (Some(issued), None) => {
            let (seconds, token) = issued.split_once(' ').unwrap();
            Ok((seconds.parse().unwrap(), parameters(token)))
        }
        (None, Some(error)) => Err(error.to_owned()),
        _ => panic!("{said}"),
    }
}

fn refused(role: Option<&str>, environment: &[(&str, String)]) -> String {
    request(role, environment).expect_err("a token was issued")
}

/// The parameters of the URL in the token.
fn parameters(token: &str) -> Parameters {
    let padded = format!("{token}{}", "=".repeat((4 - token.len() % 4) % 4));
    let url = decode_block(&padded.replace('-', "+").replace('_', "/")).unwrap();
    let url = String::from_utf8(url).unwrap();
    let query =
        url.strip_prefix("https://kafka.eu-central-1.amazonaws.com/?").unwrap_or_else(|| panic!("{url}"));
    let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap());
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    let key = PKey::hmac(key).unwrap();
    sign::Signer::new(MessageDigest::sha256(), &key).unwrap().sign_oneshot_to_vec(text.as_bytes()).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn percent_encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let encoded = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(encoded).collect()
}

/// Checks every parameter, and the signature as a broker does: from the description of SigV4, with the secret of the key.
#[track_caller]
fn assert_signed_with(key: &Key, parameters: &Parameters) {
    let get =
        |name: &str| parameters.get(name).unwrap_or_else(|| panic!("{name} in {parameters:?}")).as_str();
    let date = get("X-Amz-Date");
    let scope = format!("{}/{REGION}/kafka-cluster/aws4_request", &date[..8]);
    assert_eq!(get("Action"), "kafka-cluster%3AConnect");
    assert_eq!(get("X-Amz-Algorithm"), "AWS4-HMAC-SHA256");
    assert_eq!(get("X-Amz-Credential"), percent_encoded(&format!("{}/{scope}", key.id)));
    assert_eq!(get("X-Amz-Expires"), "900");
    assert_eq!(get("X-Amz-SignedHeaders"), "host");
    assert_eq!(get("X-Amz-Security-Token"), percent_encoded(key.session));
    assert!(get("User-Agent").starts_with("outbox-relay%2F"));
    assert_eq!(parameters.len(), 9, "{parameters:?}");

    let signed =
        parameters.iter().filter(|(name, _)| !["X-Amz-Signature", "User-Agent"].contains(&name.as_str()));
    let query: Vec<String> = signed.map(|(name, value)| format!("{name}={value}")).collect();
    let nothing = hex(&sha256(b""));
    let canonical =
        format!("GET\n/\n{}\nhost:kafka.{REGION}.amazonaws.com\n\nhost\n{nothing}", query.join("&"));
    let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", hex(&sha256(canonical.as_bytes())));
    let secret = format!("AWS4{}", key.secret).into_bytes();
    let key = scope.split('/').fold(secret, |key, part| hmac(&key, part));
    assert_eq!(get("X-Amz-Signature"), hex(&hmac(&key, &text)));
}

#[test]
fn token_is_a_signed_url_of_the_given_time() {
    let now = UNIX_EPOCH + Duration::from_secs(1_767_225_599); // 2025-12-31 23:59:59
    let credentials = |session: Option<&str>| {
        Credentials::new(OWN.id, OWN.secret, session.map(str::to_owned), None, "a test")
    };
    let signed = super::sign(&credentials(Some(OWN.session)), REGION, now).unwrap();
    let found = parameters(signed.expose());
    assert_eq!(found["X-Amz-Date"], "20251231T235959Z");
    assert_signed_with(&OWN, &found);
    let without = parameters(super::sign(&credentials(None), REGION, now).unwrap().expose());
    assert!(!without.contains_key("X-Amz-Security-Token"), "{without:?}");
}

#[test]
fn credentials_of_a_container_sign_the_token() {
    let aws = AwsServer::start();
    let (lifetime, parameters) = request(None, &aws.environment()).unwrap();
    assert_eq!(lifetime, 900);
    assert_signed_with(&OWN, &parameters);
    let requests = aws.take_requests();
    assert_eq!(requests.len(), 1, "{requests:?}");
}

#[test]
fn credentials_of_the_environment_take_precedence() {
    let aws = AwsServer::start();
    let mut environment = aws.environment();
    environment.retain(|(name, _)| !["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"].contains(name));
    environment.extend([
        ("AWS_ACCESS_KEY_ID", ASSUMED.id.to_owned()),
        ("AWS_SECRET_ACCESS_KEY", ASSUMED.secret.to_owned()),
        ("AWS_SESSION_TOKEN", ASSUMED.session.to_owned()),
    ]);
    let (lifetime, parameters) = request(None, &environment).unwrap();
    assert_eq!(lifetime, 900);
    assert_signed_with(&ASSUMED, &parameters);
    assert!(aws.take_requests().is_empty());
}

#[test]
fn other_usual_sources_of_credentials_sign_the_token() {
    let aws = AwsServer::start();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (_, parameters) = request(None, &aws.of_instance()).unwrap();
    assert_signed_with(&OWN, &parameters);

    let identity = file("identity", WEB_IDENTITY);
    let (_, parameters) = request(None, &aws.of_web_identity(&identity)).unwrap();
    assert_signed_with(&ASSUMED, &parameters);
    aws.change(|state| state.sts = Answer::Error(400, "InvalidIdentityToken"));
    let error = refused(None, &aws.of_web_identity(&identity));
    assert!(
        error.contains("STS did not issue the AWS credentials: STS rejected the web identity token"),
        "{error}"
    );

    let Key { id, secret, session } = OWN;
    let with_profile = |profile: &str| {
        let mut environment = nowhere();
        environment.retain(|(name, _)| *name != "AWS_CONFIG_FILE");
        environment.push(("AWS_CONFIG_FILE", file("config", profile)));
        request(None, &environment)
    };
    let keys =
        format!("aws_access_key_id={id}\naws_secret_access_key={secret}\naws_session_token={session}\n");
    assert_signed_with(&OWN, &with_profile(&format!("[default]\n{keys}")).unwrap().1);
    let printed = format!(
        r#"{{"Version": 1, "AccessKeyId": "{id}", "SecretAccessKey": "{secret}", "SessionToken": "{session}"}}"#
    );
    let command = format!("[default]\ncredential_process = /bin/cat {}\n", file("printed", &printed));
    assert_signed_with(&OWN, &with_profile(&command).unwrap().1);
    for (profile, expected) in [
        ("credential_process = /bin/sh -c 'echo 7Q4zMARK >&2; exit 1'", "their source returned an error"),
        ("7Q4zMARK", "the profile files or the environment variables AWS_* are invalid"),
        ("role_arn = 7Q4zMARK", "the profile files or the environment variables AWS_* are invalid"),
    ] {
        let error = with_profile(&format!("[default]\n{profile}\n")).unwrap_err();
        assert!(error.contains(expected), "{profile}: {error}");
    }
}

#[test]
fn assumed_role_signs_the_token() {
    let aws = AwsServer::start();
    let (lifetime, parameters) = request(Some(ROLE), &aws.environment()).unwrap();
    assert_eq!(lifetime, 900);
    assert_signed_with(&ASSUMED, &parameters);
    let requests = aws.take_requests();
    let assumed = requests.last().unwrap();
    for part in [
        format!("RoleArn={}", percent_encoded(ROLE)),
        "RoleSessionName=session%40host".to_owned(),
        "ExternalId=the%2Fexternal%3Aid".to_owned(),
        format!("/{REGION}/sts/aws4_request"),
    ] {
        assert!(assumed.contains(&part), "{part} in {assumed}");
    }
}

#[test]
fn token_ends_with_the_credentials() {
    let aws = AwsServer::start();
    aws.change(|state| state.lifetime = Some(Duration::from_secs(120)));
    for role in [None, Some(ROLE)] {
        let (lifetime, _) = request(role, &aws.environment()).unwrap();
        assert!((60..=120).contains(&lifetime), "{role:?}: {lifetime}");
    }
}

#[test]
fn absent_and_expired_credentials_are_reported() {
    let error = refused(None, &nowhere());
    assert!(error.starts_with("no token from AWS: no AWS credentials found: "), "{error}");
    assert!(error.contains("Attach an IAM role"), "{error}");
    let aws = AwsServer::start();
    aws.change(|state| state.lifetime = None);
    for role in [None, Some(ROLE)] {
        let error = refused(role, &aws.environment());
        assert!(error.contains("the AWS credentials have expired. Renew them"), "{error}");
    }
}

#[test]
fn refusals_of_sts_are_reported_with_the_fix() {
    let aws = AwsServer::start();
    for (status, code, expected) in [
        (
            403,
            "AccessDenied",
            "STS denied the request from arn:aws:sts::123456789012:assumed-role/own/i-1 (AccessDenied). Allow sts:AssumeRole",
        ),
        (
            403,
            "ExpiredTokenException",
            "the AWS credentials have expired (ExpiredTokenException). Renew them",
        ),
        (403, "InvalidClientTokenId", "STS does not know the AWS access key"),
        (403, "SignatureDoesNotMatch", "Check the AWS secret access key, and the clock of this host"),
        (403, "RegionDisabledException", "or check [kafka.aws] region"),
        (400, "ValidationError", "Check role_arn, role_session_name and external_id"),
        (400, "SomethingElse", "STS responded with SomethingElse"),
        (400, "7Q4zMARK", "STS returned an error or no credentials"),
    ] {
        aws.change(|state| state.sts = Answer::Error(status, code));
        let error = refused(Some(ROLE), &aws.environment());
        let start = format!("no token from AWS: the role {ROLE} cannot be assumed: ");
        assert!(error.starts_with(&start) && error.contains(expected), "{code}: {error}");
    }
}

#[test]
fn failures_of_a_source_are_reported_with_the_fix() {
    let aws = AwsServer::start();
    for (answer, expected) in [
        (Answer::Error(403, "x"), "their source responded with status 403. To find out why, run `aws sts"),
        (Answer::Garbage, "their source returned an error or no credentials"),
    ] {
        aws.change(|state| state.metadata = answer);
        let error = refused(None, &aws.environment());
        assert!(error.contains("the AWS credentials cannot be loaded: "), "{answer:?}: {error}");
        assert!(error.contains(expected), "{answer:?}: {error}");
    }
    let with = |more: &[(&'static str, &str)]| {
        let more = more.iter().map(|(name, value)| (*name, (*value).to_owned()));
        refused(None, &nowhere().into_iter().chain(more).collect::<Vec<_>>())
    };
    let error = with(&[("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/7Q4zMARK")]);
    assert!(
        error.contains("no answer from http://127.0.0.1:1: it is unreachable: Connection refused"),
        "{error}"
    );
    assert!(error.contains("Check [kafka.aws] region, DNS and the network"), "{error}");
    let error = with(&[("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://192.0.2.1/7Q4zMARK")]);
    assert!(error.contains("the environment variables AWS_* are invalid"), "{error}");
    let error = with(&[("AWS_WEB_IDENTITY_TOKEN_FILE", "/nonexistent"), ("AWS_ROLE_ARN", ROLE)]);
    assert!(error.contains("a file cannot be read: No such file or directory"), "{error}");
}

#[test]
fn invalid_environment_is_an_error_and_ends_no_process() {
    let aws = AwsServer::start();
    let keys = [("AWS_ACCESS_KEY_ID", "AKID"), ("AWS_SECRET_ACCESS_KEY", "secret")];
    for (more, expected) in [
        (("AWS_SESSION_TOKEN", "7Q4zMARK\nx: y"), "contain invalid characters or are too long"),
        (("AWS_SESSION_TOKEN", "7Q4zMARK\u{e4}"), "contain invalid characters or are too long"),
        (
            ("AWS_ENDPOINT_URL_STS", "7Q4zMARK of no server"),
            "cannot be assumed: STS returned an error or no credentials",
        ),
    ] {
        let mut environment = aws.environment();
        environment.retain(|(name, _)| ![keys[0].0, keys[1].0, more.0].contains(name));
        environment.extend(keys.iter().chain([&more]).map(|(name, value)| (*name, (*value).to_owned())));
        let error = refused(Some(ROLE), &environment);
        assert!(error.contains(expected), "{more:?}: {error}");
    }
    // These are not used.
    for more in [
        ("AWS_MAX_ATTEMPTS", "many"),
        ("AWS_RETRY_MODE", "x"),
        ("AWS_REGION", "7Q4zMARK"),
        ("AWS_PROFILE", "x"),
    ] {
        let mut environment = aws.environment();
        environment.push((more.0, more.1.to_owned()));
        let (lifetime, _) = request(None, &environment).unwrap_or_else(|error| panic!("{more:?}: {error}"));
        assert_eq!(lifetime, 900, "{more:?}");
    }
}

#[test]
fn request_has_a_time_limit() {
    let aws = AwsServer::start();
    aws.change(|state| state.metadata = Answer::Nothing);
    let error = refused(None, &aws.environment());
    assert_eq!(error, "no token from AWS: no response within 10s");
}
