//! A process that pretends to be PostgreSQL on this host gets no password, and a real server gets it as `require_auth` says.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};

use crate::postgres::{BY_PASSWORD, Secured};
use crate::support::database::run;
use crate::support::relay::Relay;

const PASSWORD: &str = "hunter2-7Q4z";
const CLEAR: &[u8] = b"R\0\0\0\x08\0\0\0\x03";
const MD5: &[u8] = b"R\0\0\0\x0c\0\0\0\x05salt";
const TLS_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// What an impostor has received in answer to its request, over all connections.
type Received = Arc<Mutex<Vec<u8>>>;

/// Refuses TLS, requests authentication, and keeps what arrives.
async fn pretend(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin, request: &[u8], received: Received) {
    let mut buffer = vec![0; 4_096];
    loop {
        let Ok(count @ 1..) = stream.read(&mut buffer).await else { return };
        let answer = if buffer[..count] == TLS_REQUEST { &b"N"[..] } else { request };
        stream.write_all(answer).await.unwrap();
        if answer == request {
            break;
        }
    }
    if let Ok(count) = stream.read(&mut buffer).await {
        received.lock().unwrap().extend_from_slice(&buffer[..count]);
    }
}

fn relay(outbox: &Relay, url: &str) -> Relay {
    outbox.clone().set("postgres", "url", url).set("postgres", "password", PASSWORD)
}

/// The output of `check-config --connect`, which fails.
async fn refused(relay: Relay, said: &[&str]) {
    let ended =
        tokio::task::spawn_blocking(move || relay.command(&["check-config", "--connect"])).await.unwrap();
    println!("{}", ended.stdout);
    ended.fails(69, said);
    assert!(!ended.to_string().contains(PASSWORD), "{ended}");
}

#[tokio::test]
async fn an_impostor_on_loopback_or_a_socket_gets_no_password() {
    let secured = Secured::start("impostor").await;
    let outbox = secured.outbox.relay();
    for (request, method) in [(CLEAR, "in clear text (password)"), (MD5, "an MD5 hash of the password (md5)")]
    {
        let received = Received::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixListener::bind(folder.path().join(".s.PGSQL.5432")).unwrap();
        let (by_tcp, by_socket) = (Arc::clone(&received), Arc::clone(&received));
        let impostor = tokio::spawn(async move {
            loop {
                tokio::select! {
                    Ok((stream, _)) = listener.accept() => {
                        tokio::spawn(pretend(stream, request, Arc::clone(&by_tcp)));
                    }
                    Ok((stream, _)) = socket.accept() => {
                        tokio::spawn(pretend(stream, request, Arc::clone(&by_socket)));
                    }
                }
            }
        });
        let tcp = format!("host=127.0.0.1 port={port} user=relay dbname=app");
        let socket = format!("host={} user=relay dbname=app", folder.path().display());
        for url in [&tcp, &socket] {
            for sslmode in ["", " sslmode=disable"] {
                let said = [method, "only scram-sha-256, none may be used", "add the method to require_auth"];
                refused(relay(&outbox, &format!("{url}{sslmode}")), &said).await;
            }
            let strict = format!("{url} require_auth=!password,!md5,!none");
            refused(relay(&outbox, &strict), &[method, "only scram-sha-256 may be used"]).await;
        }
        assert_eq!(*received.lock().unwrap(), b"", "the impostor received an answer");
        let said = ["requirepeer is \"no-such-user\", but the server runs as", "which process listens"];
        refused(relay(&outbox, &format!("{socket} requirepeer=no-such-user")), &said).await;

        // With consent, the password is sent.
        let allowed = relay(&outbox, &format!("{tcp} require_auth=password,md5"));
        tokio::task::spawn_blocking(move || allowed.command(&["status"])).await.unwrap();
        let received = String::from_utf8_lossy(&received.lock().unwrap()).into_owned();
        let sent = if request == CLEAR { PASSWORD } else { "md5" };
        assert!(received.contains(sent), "{received:?}");
        impostor.abort();
    }
    secured.outbox.drop().await;
}

#[tokio::test]
async fn a_server_without_tls_gets_the_password_as_require_auth_says() {
    let secured = Secured::start("require_auth").await;
    let hba = async |method: &str| {
        let line =
            format!("host all {BY_PASSWORD} 127.0.0.1/32 {method}\nhost all postgres 127.0.0.1/32 trust\n");
        std::fs::write(secured.server.data().join("pg_hba.conf"), line).unwrap();
        secured.reload().await;
    };
    let by = |parameters: &str| {
        secured.relay_at(&secured.server.address(), BY_PASSWORD, &format!("sslmode=disable{parameters}"))
    };
    hba("scram-sha-256").await;
    secured.assert_works("SCRAM", by("")).await;
    secured.assert_works("SCRAM alone", by("&require_auth=scram-sha-256")).await;
    let said = ["requests SCRAM (scram-sha-256), but only password may be used"];
    secured.assert_refused("another method", by("&require_auth=password"), &said).await;

    hba("password").await;
    secured.assert_refused("clear text", by(""), &["in clear text (password)"]).await;
    secured.assert_works("clear text with consent", by("&require_auth=password")).await;
    secured.assert_works("clear text over verified TLS", secured.relay(BY_PASSWORD, "")).await;

    run(
        &secured.outbox.client,
        "SET password_encryption = 'md5'; ALTER ROLE by_password PASSWORD 'an old password'",
    )
    .await;
    hba("md5").await;
    secured.assert_refused("MD5", by(""), &["an MD5 hash of the password (md5)"]).await;
    secured.assert_works("MD5 with consent", by("&require_auth=md5,password")).await;

    hba("trust").await;
    secured.assert_works("no password", by("")).await;
    let said = ["without authentication (none), but only scram-sha-256 may be used"];
    secured.assert_refused("no password", by("&require_auth=scram-sha-256"), &said).await;
    secured.outbox.drop().await;
}
