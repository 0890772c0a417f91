//! Completes abandoned requests: those whose process died and whose client did not retry.

use std::time::Duration;

use pg_idempotency::idempotency::{Guard, Idempotency};

use crate::database::connection;
use crate::pay::Shop;

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Each takes up to two seconds, and all must be completed while their locks are held.
const BATCH_SIZE: u16 = 4;

/// Runs until the process ends. If several processes run it, each request goes to one of them.
pub async fn run(shop: Shop, idempotency: Idempotency, older_than: Duration) {
    loop {
        match abandoned(&shop, &idempotency, older_than).await {
            Ok(guards) => {
                let tasks: Vec<_> =
                    guards.into_iter().map(|g| tokio::spawn(complete(shop.clone(), g))).collect();
                for task in tasks {
                    let _ = task.await; // a request whose task panicked returns later, like every unfinished request
                }
            }
            Err(error) => eprintln!("completer: {error:#}"),
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn abandoned(
    shop: &Shop,
    idempotency: &Idempotency,
    older_than: Duration,
) -> anyhow::Result<Vec<Guard>> {
    let client = connection(&shop.pool).await?;
    Ok(idempotency.abandoned(&client, older_than, BATCH_SIZE).await?)
}

/// A request that is not completed now returns later, after a growing pause.
async fn complete(shop: Shop, mut guard: Guard) {
    // `abandoned` returns the requests of every route, also those whose body was not kept.
    let is_payment = guard.scope().as_str().starts_with("POST /payments ");
    let Some(body) = guard.request().filter(|_| is_payment).map(<[u8]>::to_vec) else {
        eprintln!("request {} is not a payment with a body, skipped", guard.key().as_str());
        return;
    };
    if let Err(unfinished) = shop.pay(&mut guard, &body, "completer").await {
        let (key, attempts) = (guard.key().as_str(), guard.attempts());
        eprintln!("payment {key} is not finished, attempt {attempts}: {:#}", anyhow::Error::new(unfinished));
    }
}
