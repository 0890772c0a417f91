use std::error::Error as StdError;

use super::sqlx::PgPool;
use crate::driver::OutboxClient;
use crate::tower::Connections;

impl Connections for PgPool {
    type Connection = PgPool;

    async fn get(&self) -> Result<PgPool, Box<dyn StdError + Send + Sync>> {
        Ok(self.clone())
    }

    fn client(pool: &mut PgPool) -> impl OutboxClient {
        &*pool
    }
}
