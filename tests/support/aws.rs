//! Where a process gets AWS credentials: the metadata of a container or an instance, and STS. All are one HTTP server on
//! loopback.
//!
//! The unit tests of `crates/kafka/src/msk` use it too.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

/// Credentials. Secrets contain a mark that no output may contain, and characters that a URL must escape.
pub struct Key {
    pub id: &'static str,
    pub secret: &'static str,
    pub session: &'static str,
}

/// The credentials of the container and of the instance.
pub const OWN: Key = Key {
    id: "AKIDOWN4EXAMPLE",
    secret: "own/secret+7Q4zMARK",
    session: "own/session+of=the container&7Q4zMARK",
};
/// The credentials of the assumed role.
pub const ASSUMED: Key = Key {
    id: "AKIDROLE4EXAMPLE",
    secret: "role/secret+7Q4zMARK",
    session: "role/session+of=the role&7Q4zMARK",
};
/// Authenticates the container or the instance to its endpoint.
const METADATA_TOKEN: &str = "metadata-token-7Q4zMARK";
/// Authenticates a process to STS.
pub const WEB_IDENTITY: &str = "web-identity-7Q4zMARK";
const ROLES: &str = "/latest/meta-data/iam/security-credentials/";
/// What no log and no error may contain.
pub const MARK: &str = "7Q4zMARK";

/// How a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Credentials,
    /// An error with this status and code. Its message contains the mark, as that of a wrong signature does at STS.
    Error(u16, &'static str),
    /// Something else.
    Garbage,
    /// The connection stays open.
    Nothing,
}

/// The current state, which a test can change.
pub struct State {
    /// The container and the instance.
    pub metadata: Answer,
    pub sts: Answer,
    /// The time until the credentials end; `None` if they ended a minute ago.
    pub lifetime: Option<Duration>,
    /// Head and body of each request.
    pub requests: Vec<String>,
    silent: Vec<TcpStream>,
}

/// The server. Its thread ends with the process.
pub struct AwsServer {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl AwsServer {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State {
            metadata: Answer::Credentials,
            sts: Answer::Credentials,
            lifetime: Some(Duration::from_secs(3_600)),
            requests: Vec::new(),
            silent: Vec::new(),
        }));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                thread::spawn(move || serve(stream, &state));
            }
        });
        Self { address, state }
    }

    pub fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
    }

    /// The requests since the last call.
    pub fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }

    /// The variables of a process in a container that gets its credentials here, and from nowhere else.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let mut variables = nowhere();
        variables.extend([
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", format!("http://{}/credentials", self.address)),
            ("AWS_CONTAINER_AUTHORIZATION_TOKEN", METADATA_TOKEN.to_owned()),
            ("AWS_ENDPOINT_URL_STS", format!("http://{}", self.address)),
        ]);
        variables
    }

    /// The same for a process on an instance.
    pub fn of_instance(&self) -> Vec<(&'static str, String)> {
        let mut variables = nowhere();
        variables.retain(|(name, _)| *name != "AWS_EC2_METADATA_DISABLED");
        variables.push(("AWS_EC2_METADATA_SERVICE_ENDPOINT", format!("http://{}", self.address)));
        variables
    }

    /// The same for a process with a web identity, whose token is in this file.
    pub fn of_web_identity(&self, file: &str) -> Vec<(&'static str, String)> {
        let mut variables = nowhere();
        variables.extend([
            ("AWS_WEB_IDENTITY_TOKEN_FILE", file.to_owned()),
            ("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/pod".to_owned()),
            ("AWS_ENDPOINT_URL_STS", format!("http://{}", self.address)),
        ]);
        variables
    }
}

/// The variables of a process that has no credentials.
pub fn nowhere() -> Vec<(&'static str, String)> {
    let variables = [
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("AWS_CONFIG_FILE", "/dev/null"),
        ("AWS_SHARED_CREDENTIALS_FILE", "/dev/null"),
        ("AWS_ACCESS_KEY_ID", ""),
        ("AWS_SECRET_ACCESS_KEY", ""),
    ];
    variables.map(|(name, value)| (name, value.to_owned())).to_vec()
}

/// Handles the requests of a connection. Errors of the client are ignored.
fn serve(mut stream: TcpStream, state: &Mutex<State>) -> Option<()> {
    loop {
        let request = read(&mut stream)?;
        let answer = {
            let mut state = state.lock().unwrap();
            state.requests.push(request.clone());
            let is_sts = request.starts_with("POST / ");
            let how = if is_sts { state.sts } else { state.metadata };
            let ends = match state.lifetime {
                Some(left) => SystemTime::now() + left,
                None => SystemTime::now() - Duration::from_secs(60),
            };
            let ends = humantime::format_rfc3339_seconds(ends).to_string();
            match how {
                Answer::Nothing => {
                    state.silent.push(stream);
                    return None;
                }
                Answer::Garbage => (200, format!("<{MARK}")),
                Answer::Error(status, code) if is_sts => (status, refused(code)),
                Answer::Error(status, code) => {
                    (status, format!(r#"{{"Code": "{code}", "Message": "{MARK}"}}"#))
                }
                Answer::Credentials if is_sts => sts(&request, &ends),
                Answer::Credentials => metadata(&request, &ends),
            }
        };
        let (status, body) = answer;
        let token_lasts = "x-aws-ec2-metadata-token-ttl-seconds: 21600";
        let head = format!("HTTP/1.1 {status} x\r\n{token_lasts}\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(format!("{head}{body}").as_bytes()).ok()?;
    }
}

/// Head and body, according to the content-length.
fn read(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let mut buffer = [0; 4_096];
        let count = stream.read(&mut buffer).ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&buffer[..count]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
        });
        if body.len() >= length.unwrap_or(0) {
            return Some(text);
        }
    }
}

/// The endpoint of the container is `/credentials`. The others are those of the instance.
fn metadata(request: &str, ends: &str) -> (u16, String) {
    let path = request.split(' ').nth(1).unwrap_or_default();
    let role = path.strip_prefix(ROLES);
    if path == "/latest/api/token" {
        return (200, METADATA_TOKEN.to_owned());
    }
    if !request.contains(METADATA_TOKEN) {
        return (401, "{}".to_owned());
    }
    match role {
        Some("") => (200, "own".to_owned()),
        Some("own") => (200, as_json(&OWN, ends)),
        None if path == "/credentials" => (200, as_json(&OWN, ends)),
        _ => (404, String::new()),
    }
}

fn as_json(Key { id, secret, session }: &Key, ends: &str) -> String {
    format!(
        r#"{{"Code": "Success", "AccessKeyId": "{id}", "SecretAccessKey": "{secret}", "Token": "{session}", "Expiration": "{ends}"}}"#
    )
}

/// Accepts requests of the container or the instance, and web identities. The signature is not verified.
fn sts(request: &str, ends: &str) -> (u16, String) {
    let is_signed = request.contains(&format!("AWS4-HMAC-SHA256 Credential={}/", OWN.id));
    let action = if request.contains("Action=AssumeRole&") && is_signed && request.contains(OWN.session) {
        "AssumeRole"
    } else if request.contains("Action=AssumeRoleWithWebIdentity&") && request.contains(WEB_IDENTITY) {
        "AssumeRoleWithWebIdentity"
    } else {
        return (400, refused("InvalidAction"));
    };
    let Key { id, secret, session } = ASSUMED;
    let session = session.replace('&', "&amp;");
    let body = format!(
        r#"<{action}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{action}Result>
<AssumedRoleUser><Arn>arn:aws:sts::123456789012:assumed-role/outbox-relay/outbox-relay</Arn>
<AssumedRoleId>AROA4EXAMPLE:outbox-relay</AssumedRoleId></AssumedRoleUser>
<Credentials><AccessKeyId>{id}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey>
<SessionToken>{session}</SessionToken><Expiration>{ends}</Expiration></Credentials>
</{action}Result><ResponseMetadata><RequestId>1</RequestId></ResponseMetadata></{action}Response>"#
    );
    (200, body)
}

fn refused(code: &str) -> String {
    format!(
        r#"<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type><Code>{code}</Code>
<Message>User: arn:aws:sts::123456789012:assumed-role/own/i-1 is not authorized. The canonical string is {MARK}</Message>
</Error><RequestId>1</RequestId></ErrorResponse>"#
    )
}
