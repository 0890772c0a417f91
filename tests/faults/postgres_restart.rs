//! The private server itself does what the tests rely on.

use crate::support::database::run;
use crate::support::postgres_server::{PostgresServer, Shutdown};

#[tokio::test]
async fn a_server_of_a_tests_own_restarts_and_has_a_standby_that_can_be_promoted() {
    let mut server = PostgresServer::start(&[]).await;
    run(&server.connect().await, "CREATE TABLE kept (n int); INSERT INTO kept VALUES (1)").await;
    for how in [Shutdown::Fast, Shutdown::Immediate, Shutdown::Crash] {
        let begun = std::time::Instant::now();
        server.restart(how).await;
        println!("{how:?}: {:?}", begun.elapsed());
        run(&server.connect().await, "INSERT INTO kept VALUES (1)").await;
    }
    let standby = server.standby().await;
    run(&server.connect().await, "INSERT INTO kept VALUES (1)").await;
    server.wait_until_replayed(&standby).await;
    standby.detach().await;
    run(&server.connect().await, "INSERT INTO kept VALUES (1)").await;
    server.stop(Shutdown::Crash);
    standby.promote().await;
    let client = standby.connect().await;
    let kept: i64 = client.query_one("SELECT count(*) FROM kept", &[]).await.unwrap().get(0);
    assert_eq!(kept, 5, "all but what came after the standby was detached");
    run(&client, "INSERT INTO kept VALUES (1)").await;
}
