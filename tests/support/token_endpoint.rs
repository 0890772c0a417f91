//! An identity provider: a token endpoint over HTTPS, and the keys with which a broker verifies its tokens.

use openssl::base64::encode_block;
use openssl::hash::MessageDigest;
use openssl::pkey::{PKey, Private};
use openssl::rsa::Rsa;
use openssl::sign::Signer;
use openssl::ssl::{Ssl, SslAcceptor, SslMethod};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_openssl::SslStream;

use super::certificates::Identity;

pub const CLIENT: &str = "relay";
pub const AUDIENCE: &str = "kafka";

/// How the endpoint answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// Issues tokens to clients that know the secret.
    Tokens,
    /// Issues tokens with a wrong signature.
    ForgedTokens,
    /// Returns an internal server error.
    Error,
    /// Accepts the request but never answers.
    Nothing,
}

/// The current state, which a test can change.
pub struct State {
    pub answers: Answers,
    pub secret: String,
    pub lifetime: Duration,
    /// Signs the tokens.
    key: PKey<Private>,
    /// The number of issued tokens.
    pub given: usize,
    /// The number of requests that were refused because of a wrong secret.
    pub refused: usize,
}

/// It ends when it is dropped.
pub struct TokenEndpoint {
    port: u16,
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

impl TokenEndpoint {
    /// Presents this certificate.
    pub async fn start(shown: &Identity, secret: &str, lifetime: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut acceptor = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls_server()).unwrap();
        acceptor.set_certificate(&shown.cert).unwrap();
        acceptor.set_private_key(&shown.key).unwrap();
        let acceptor = acceptor.build();
        let secret = secret.to_owned();
        let state =
            State { answers: Answers::Tokens, secret, lifetime, key: new_key(), given: 0, refused: 0 };
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let ssl = Ssl::new(acceptor.context()).unwrap();
                tokio::spawn(serve(SslStream::new(ssl, stream).unwrap(), Arc::clone(&shared)));
            }
        });
        Self { port, state, task }
    }

    pub fn url(&self) -> String {
        format!("https://localhost:{}/oauth2/token", self.port)
    }

    pub fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
    }

    pub fn given(&self) -> usize {
        self.state.lock().unwrap().given
    }

    pub fn refused(&self) -> usize {
        self.state.lock().unwrap().refused
    }

    /// Signs with another key from now on.
    pub fn rotate_key(&self) {
        self.change(|state| state.key = new_key());
    }

    /// The keys that verify its tokens, as a JSON Web Key Set.
    pub fn keys(&self) -> String {
        let rsa = self.state.lock().unwrap().key.rsa().unwrap();
        let (n, e) = (base64url(&rsa.n().to_vec()), base64url(&rsa.e().to_vec()));
        format!(
            r#"{{"keys": [{{"kty": "RSA", "kid": "1", "use": "sig", "alg": "RS256", "n": "{n}", "e": "{e}"}}]}}"#
        )
    }
}

impl Drop for TokenEndpoint {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Handles one request. Errors of the client are ignored.
async fn serve(mut stream: SslStream<TcpStream>, state: Arc<Mutex<State>>) -> Option<()> {
    Pin::new(&mut stream).accept().await.ok()?;
    let request = read(&mut stream).await?;
    let (status, body) = {
        let mut state = state.lock().unwrap();
        // Form-encoded, also in the header.
        let secret = state.secret.replace(' ', "%20");
        let basic = encode_block(format!("{CLIENT}:{secret}").as_bytes());
        let by_header = request.to_lowercase().contains("authorization: basic ") && request.contains(&basic);
        let by_body = request.ends_with(&format!("client_id={CLIENT}&client_secret={secret}"));
        let is_grant = request.starts_with("POST /oauth2/token HTTP/1.1\r\n")
            && request.contains("grant_type=client_credentials&scope=events");
        match state.answers {
            Answers::Nothing => (0, String::new()),
            Answers::Error => (500, "secrets of the provider".to_owned()),
            _ if !is_grant => (400, r#"{"error": "invalid_request"}"#.to_owned()),
            _ if !(by_header || by_body) => {
                state.refused += 1;
                (401, r#"{"error": "invalid_client"}"#.to_owned())
            }
            Answers::Tokens => {
                state.given += 1;
                (200, granted(&state.key, state.lifetime))
            }
            Answers::ForgedTokens => {
                state.given += 1;
                (200, granted(&new_key(), state.lifetime))
            }
        }
    };
    if status == 0 {
        std::future::pending::<()>().await;
    }
    let head = format!(
        "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await.ok()?;
    stream.shutdown().await.ok()
}

/// Head and body, according to the content-length.
async fn read(stream: &mut SslStream<TcpStream>) -> Option<String> {
    let mut text = String::new();
    loop {
        let mut buffer = [0; 4_096];
        let count = stream.read(&mut buffer).await.ok().filter(|count| *count > 0)?;
        text.push_str(std::str::from_utf8(&buffer[..count]).ok()?);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
        });
        if body.len() >= length.unwrap_or(0) {
            return Some(text);
        }
    }
}

fn new_key() -> PKey<Private> {
    PKey::from_rsa(Rsa::generate(2_048).unwrap()).unwrap()
}

fn granted(key: &PKey<Private>, lifetime: Duration) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let ends = now + lifetime.as_secs();
    let head = base64url(br#"{"alg": "RS256", "typ": "JWT", "kid": "1"}"#);
    let claims = format!(
        r#"{{"iss": "https://idp.example", "sub": "{CLIENT}", "aud": "{AUDIENCE}", "scope": "events", "iat": {now}, "exp": {ends}}}"#
    );
    let signed = format!("{head}.{}", base64url(claims.as_bytes()));
    let mut signer = Signer::new(MessageDigest::sha256(), key).unwrap();
    let signature = base64url(&signer.sign_oneshot_to_vec(signed.as_bytes()).unwrap());
    let seconds = lifetime.as_secs();
    format!(r#"{{"access_token": "{signed}.{signature}", "token_type": "Bearer", "expires_in": {seconds}}}"#)
}

fn base64url(bytes: &[u8]) -> String {
    encode_block(bytes).replace('+', "-").replace('/', "_").trim_end_matches('=').to_owned()
}
