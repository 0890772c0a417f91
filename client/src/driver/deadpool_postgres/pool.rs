use std::error::Error as StdError;

use deadpool_postgres::{Client, Pool};

use crate::driver::OutboxClient;
use crate::tower::Connections;

impl Connections for Pool {
    type Connection = Client;

    async fn get(&self) -> Result<Client, Box<dyn StdError + Send + Sync>> {
        Ok(Pool::get(self).await?)
    }

    fn client(connection: &mut Client) -> impl OutboxClient {
        &*connection
    }
}
