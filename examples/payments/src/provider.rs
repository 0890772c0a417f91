//! A typical payment provider. It accepts an idempotency key, is sometimes slow, sometimes fails, and sometimes loses
//! its answer. It declines large amounts.

use std::time::Duration;

use anyhow::Context;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use axum::{Json, Router};
use deadpool_postgres::Pool;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

/// Larger amounts are declined.
pub const CENTS_MAX: i64 = 50_000;

/// A request to the provider.
#[derive(Deserialize, Serialize)]
pub struct ChargeRequest {
    pub reference: String,
    pub cents: i64,
}

/// The answer, which is the same for every request with the same key.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Charge {
    pub id: i64,
    pub approved: bool,
}

/// Charges once for each key, and counts the requests.
const CHARGE: &str = "
INSERT INTO provider.charge AS c (key, reference, cents, approved) VALUES ($1, $2, $3, $4)
ON CONFLICT (key) DO UPDATE SET times_asked = c.times_asked + 1
RETURNING id, approved, reference = $2 AND cents = $3";

/// The behavior for one request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mood {
    Good,
    Slow,
    FailsBefore,
    FailsAfter,
    NeverAnswers,
}

impl Mood {
    /// 80 of 100 requests are answered normally.
    fn drawn() -> Mood {
        match fastrand::u32(..100) {
            0..5 => Mood::Slow,
            5..9 => Mood::FailsBefore,
            9..17 => Mood::FailsAfter,
            17..20 => Mood::NeverAnswers,
            _ => Mood::Good,
        }
    }
}

/// Serves until the process ends.
pub async fn serve(listen: &str, pool: Pool) -> anyhow::Result<()> {
    let listener = TcpListener::bind(listen).await.with_context(|| format!("the provider at {listen}"))?;
    let app = Router::new().route("/charges", post(charge)).with_state(pool);
    axum::serve(listener, app).await?;
    Ok(())
}

async fn charge(
    State(pool): State<Pool>,
    headers: HeaderMap,
    Json(request): Json<ChargeRequest>,
) -> Result<Json<Charge>, StatusCode> {
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok());
    let key = key.ok_or(StatusCode::BAD_REQUEST)?.to_owned();
    let mood = Mood::drawn();
    let usual = Duration::from_millis(fastrand::u64(2..40));
    tokio::time::sleep(if mood == Mood::Slow { usual * 40 } else { usual }).await;
    if mood == Mood::FailsBefore {
        return Err(StatusCode::SERVICE_UNAVAILABLE);
    }
    // As with real providers, the client may have disconnected, but the charge continues.
    let record = async move { record(&pool, &key, &request).await };
    let charge = tokio::spawn(record).await.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)??;
    match mood {
        Mood::FailsAfter => Err(StatusCode::INTERNAL_SERVER_ERROR),
        Mood::NeverAnswers => std::future::pending().await,
        _ => Ok(Json(charge)),
    }
}

async fn record(pool: &Pool, key: &str, request: &ChargeRequest) -> Result<Charge, StatusCode> {
    let client = pool.get().await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    let approved = request.cents <= CENTS_MAX;
    let row = client.query_one(CHARGE, &[&key, &request.reference, &request.cents, &approved]).await;
    let row = row.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    if !row.get::<_, bool>(2) {
        return Err(StatusCode::UNPROCESSABLE_ENTITY); // the key was used for another charge
    }
    Ok(Charge { id: row.get(0), approved: row.get(1) })
}
