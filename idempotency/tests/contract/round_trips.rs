use std::time::Duration;

use pg_idempotency::idempotency::{Begun, Fingerprint, Key, Request, Response, Scope};

use crate::drivers::{Connection, Tx};
use crate::proxy;
use crate::{database, modules};

pub async fn each_prepared_call_is_one_round_trip<C: Connection>() {
    let modules = modules::Database::new().await;
    let (url, requests) = proxy::start(&database::url()).await;
    let mut connection = C::connect(&url).await;
    for is_first in [true, false] {
        // The first call of each kind also prepares its statement and reads the column type.
        let expect = |most: usize, what: &str| {
            let taken = requests.take();
            assert!(is_first || (1..=most).contains(&taken), "{what}: {taken} round trips");
        };
        let scope = Scope::new("POST", "/payments", is_first).unwrap();
        let request = Request::new(scope, Key::new("k").unwrap(), Fingerprint::bytes(b""));
        requests.take();
        let Begun::Started(guard) = modules.idempotency.begin(connection.client(), &request).await.unwrap()
        else {
            panic!("the key is new")
        };
        expect(if C::IS_PINGED_BY_ITS_POOL { 2 } else { 1 }, "begin");
        let mut tx = connection.begin().await;
        requests.take();
        let _ = modules.inbox.receive(tx.tx(), "a", is_first).await.unwrap();
        expect(1, "receive");
        modules.inbox.receive_many(tx.tx(), "a", 0..500).await.unwrap();
        expect(1, "receive_many");
        let _ = modules.once.claim(tx.tx(), "job", Duration::from_secs(1)).await.unwrap();
        expect(1, "claim");
        guard.finish(tx.tx(), &Response::new(200)).await.unwrap();
        expect(1, "finish");
        tx.commit().await;
    }
    modules.clean_up().await;
}
