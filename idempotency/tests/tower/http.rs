//! The layer in a server of axum, over TCP.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::api::Api;
use crate::database::Database;

async fn serve(api: &Api) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let router = api.router.clone();
    tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
    address
}

async fn request(address: &str, headers: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "POST /finished HTTP/1.1\r\nhost: api\r\nconnection: close\r\nx-user: ada\r\n\
         idempotency-key: \"k\"\r\n{headers}content-length: 2\r\n\r\n{{}}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

async fn answer(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn client_that_closes_its_connection_gets_the_response_later() {
    let db = Database::new().await;
    let api = Arc::new(Api::new(&db).await);
    let address = serve(&api).await;
    let gone = request(&address, "wait: 1\r\n").await;
    api.gate.reached().await;
    drop(gone);
    let busy = answer(request(&address, "").await).await;
    for part in ["HTTP/1.1 409", "retry-after: 1\r\n", "content-type: application/problem+json\r\n"] {
        assert!(busy.contains(part), "{part}: {busy}");
    }
    api.gate.open();
    db.until("the response is stored", "SELECT count(status) = 1 FROM {s}.idempotency_key").await;
    let replay = answer(request(&address, "").await).await;
    for part in ["HTTP/1.1 201", "location: /7\r\n", "idempotent-replayed: true\r\n", "waited{}"] {
        assert!(replay.contains(part), "{part}: {replay}");
    }
    assert_eq!(db.number("SELECT count(*) FROM {s}.effect").await, 1);
    db.clean_up().await;
}
