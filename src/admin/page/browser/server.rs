//! Serves one page with the real headers.

use crate::admin::page::protection;
use axum::Router;
use axum::http::header;
use axum::routing::get;
use std::net::SocketAddr;

/// Serves this page until the test ends. Returns the address.
pub(super) fn serve(html: String) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = || async move { (protection(), [(header::CONTENT_TYPE, "text/html; charset=utf-8")], html) };
    let router = Router::new().route("/", get(answer));
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            listener.set_nonblocking(true).unwrap();
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let service = hyper_util::service::TowerToHyperService::new(router.clone());
                let connection = hyper::server::conn::http1::Builder::new()
                    .keep_alive(false)
                    .serve_connection(hyper_util::rt::TokioIo::new(stream), service);
                tokio::spawn(connection);
            }
        });
    });
    address
}
