//! An API with axum that places orders. Clients can repeat a request with the same `Idempotency-Key`: the order is placed once.
//!
//! outbox-relay migrate --config config.toml --with idempotency
//! DATABASE_URL=postgres://shop@localhost/shop \
//!     cargo run -p pg-idempotency --features deadpool-postgres,tower --example orders_api
//! curl -i localhost:8080/orders -H 'Idempotency-Key: "1"' -H 'X-User: ada' --json '{"cents": 1200}'

use std::error::Error;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Json, Router, http::StatusCode};
use deadpool_postgres::{Manager, Pool, Runtime};
use pg_idempotency::InvalidText;
use pg_idempotency::idempotency::{Response as Stored, Scope};
use pg_idempotency::tower::{Held, IdempotencyLayer};
use pg_outbox::OutboxEvent;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio_postgres::NoTls;

/// A request that gets no connection within this time is answered with 503.
const CONNECTION_WITHIN: Duration = Duration::from_secs(2);

/// A real shop would have a migration for this table.
const CREATE_ORDERS: &str = "
    CREATE TABLE IF NOT EXISTS shop_order (
        id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        customer text    NOT NULL,
        cents    bigint  NOT NULL,
        status   text    NOT NULL DEFAULT 'placed'
    )";

#[derive(Deserialize)]
struct Order {
    cents: i64,
}

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", key = "order_id")]
struct OrderPlaced {
    order_id: i64,
    cents: i64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("DATABASE_URL")
        .map_err(|_| "DATABASE_URL is not set. Set it, for example to postgres://localhost/shop")?;
    let pool = Pool::builder(Manager::new(url.parse()?, NoTls))
        .max_size(8)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(CONNECTION_WITHIN))
        .create_timeout(Some(CONNECTION_WITHIN))
        .build()?;
    pool.get().await?.batch_execute(CREATE_ORDERS).await?;

    let idempotency = IdempotencyLayer::new(pool.clone(), scope)
        .body_limit(64 * 1024)
        .observer(|scope, outcome| println!("{}: {outcome:?}", scope.as_str()));
    let app = Router::new().route("/orders", post(place_order)).layer(idempotency).with_state(pool);
    axum::serve(TcpListener::bind("127.0.0.1:8080").await?, app).await?;
    Ok(())
}

/// A key is unique for the method, the path and the user. A real API would authenticate the user and put it into the extensions
/// of the request.
fn scope(request: &Parts) -> Option<Result<Scope, InvalidText>> {
    let user = request.headers.get("x-user")?.to_str().ok()?;
    Some(Scope::new(request.method.as_str(), request.uri.path(), user))
}

/// The order, its event and the response are committed together or not at all.
async fn place_order(
    State(pool): State<Pool>,
    Extension(held): Extension<Held>,
    Json(order): Json<Order>,
) -> Result<Response<Body>, Failed> {
    let mut client = pool.get().await?;
    let tx = client.transaction().await?;
    let sql = "INSERT INTO shop_order (customer, cents) VALUES ('a customer', $1) RETURNING id";
    let order_id = tx.query_one(sql, &[&order.cents]).await?.get(0);
    pg_outbox::enqueue(&tx, &OrderPlaced { order_id, cents: order.cents }).await?;
    let response = Stored::new(201).json(&serde_json::json!({ "order": order_id }))?;
    held.lock().await.finish(&tx, &response).await?;
    tx.commit().await?;
    Ok(response.into())
}

/// Nothing is committed, or the outcome is unknown. The client repeats the request.
struct Failed(Box<dyn Error>);

impl<E: Into<Box<dyn Error>>> From<E> for Failed {
    fn from(error: E) -> Failed {
        Failed(error.into())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        eprintln!("cannot place the order: {}", self.0);
        StatusCode::SERVICE_UNAVAILABLE.into_response()
    }
}
