//! Where a process gets AWS credentials: the endpoint of a container, and STS. Both are one HTTP server on loopback.
//!
//! The unit tests of `src/kafka/tokens/msk` use it too.

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

/// The credentials of the container.
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
/// Authenticates the container to its endpoint.
const CONTAINER_TOKEN: &str = "container-token-7Q4zMARK";
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
    pub container: Answer,
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
            container: Answer::Credentials,
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

    /// The variables of a process that gets its credentials here, and from nowhere else.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let mut variables = nowhere();
        variables.extend([
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", format!("http://{}/credentials", self.address)),
            ("AWS_CONTAINER_AUTHORIZATION_TOKEN", CONTAINER_TOKEN.to_owned()),
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
            let is_container = request.starts_with("GET /credentials ");
            let how = if is_container { state.container } else { state.sts };
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
                Answer::Error(status, code) if is_container => {
                    (status, format!(r#"{{"Code": "{code}", "Message": "{MARK}"}}"#))
                }
                Answer::Error(status, code) => (status, refused(code)),
                Answer::Credentials if is_container => container(&request, &ends),
                Answer::Credentials => sts(&request, &ends),
            }
        };
        let (status, body) = answer;
        let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n", body.len());
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

fn container(request: &str, ends: &str) -> (u16, String) {
    if !request.contains(CONTAINER_TOKEN) {
        return (401, "{}".to_owned());
    }
    let Key { id, secret, session } = OWN;
    let body = format!(
        r#"{{"AccessKeyId": "{id}", "SecretAccessKey": "{secret}", "Token": "{session}", "Expiration": "{ends}"}}"#
    );
    (200, body)
}

/// Whether the request is one of the container, with its session. Its signature is not verified.
fn sts(request: &str, ends: &str) -> (u16, String) {
    let is_signed = request.contains(&format!("AWS4-HMAC-SHA256 Credential={}/", OWN.id));
    if !is_signed || !request.contains("Action=AssumeRole&") || !request.contains(OWN.session) {
        return (400, refused("InvalidAction"));
    }
    let Key { id, secret, session } = ASSUMED;
    let session = session.replace('&', "&amp;");
    let body = format!(
        r#"<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult>
<AssumedRoleUser><Arn>arn:aws:sts::123456789012:assumed-role/outbox-relay/outbox-relay</Arn>
<AssumedRoleId>AROA4EXAMPLE:outbox-relay</AssumedRoleId></AssumedRoleUser>
<Credentials><AccessKeyId>{id}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey>
<SessionToken>{session}</SessionToken><Expiration>{ends}</Expiration></Credentials>
</AssumeRoleResult><ResponseMetadata><RequestId>1</RequestId></ResponseMetadata></AssumeRoleResponse>"#
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
