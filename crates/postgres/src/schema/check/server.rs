//! Checks the server, and reads the name of the role.

use tokio_postgres::Client;

use super::fault::{SchemaFault, SchemaFaultKind};

/// The oldest version that is tested.
const VERSION_NUM_MIN: i32 = 140_000;

/// Kafka consumers and the client library expect UTF-8.
const ENCODING: &str = "UTF8";

const SERVER: &str = "
SELECT current_setting('server_version_num')::integer, current_setting('server_version'), pg_is_in_recovery(),
       d.oid, d.datname::text, current_user::text, r.rolsuper, pg_encoding_to_char(d.encoding)::text
FROM pg_database AS d CROSS JOIN pg_roles AS r
WHERE d.datname = current_database() AND r.rolname = current_user";

/// The server and the role.
///
/// A role whose transactions are read-only by default is not a fault: the relay requests READ WRITE in each transaction.
pub(super) struct Server {
    pub(super) version_num: i32,
    version: String,
    in_recovery: bool,
    pub(super) database_oid: u32,
    database: String,
    pub(super) role: String,
    pub(super) is_superuser: bool,
    encoding: String,
}

pub(super) async fn read(client: &Client) -> Result<Server, tokio_postgres::Error> {
    let row = client.query_typed_one(SERVER, &[]).await?;
    Ok(Server {
        version_num: row.get(0),
        version: row.get(1),
        in_recovery: row.get(2),
        database_oid: row.get(3),
        database: row.get(4),
        role: row.get(5),
        is_superuser: row.get(6),
        encoding: row.get(7),
    })
}

impl Server {
    pub(super) fn is_too_old(&self) -> bool {
        self.version_num < VERSION_NUM_MIN
    }

    pub(super) fn faults(&self) -> Vec<SchemaFault> {
        let place = format!("database {}", self.database);
        let mut faults = Vec::new();
        if self.is_too_old() {
            let problem = format!("the server is PostgreSQL {}", self.version);
            faults.push(SchemaFault::new(
                SchemaFaultKind::Version,
                &place,
                problem,
                "upgrade it to 14 or later",
            ));
        }
        if self.in_recovery {
            faults.push(SchemaFault::new(
                SchemaFaultKind::Standby,
                &place,
                "the server is a standby and cannot be written to",
                "connect to the primary (with several hosts in [postgres] url, add target_session_attrs=read-write)",
            ));
        }
        if self.encoding != ENCODING {
            faults.push(SchemaFault::new(
                SchemaFaultKind::Encoding,
                &place,
                format!(
                    "its encoding is {}, so it may contain text that is not valid UTF-8, and a single such event \
                     would make reads fail",
                    self.encoding
                ),
                "create a database with ENCODING 'UTF8' TEMPLATE template0, and move the data there with pg_dump",
            ));
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(version_num: i32, in_recovery: bool, encoding: &str) -> Server {
        Server {
            version_num,
            version: "13.20".to_owned(),
            in_recovery,
            database_oid: 1,
            database: "shop".to_owned(),
            role: "relay".to_owned(),
            is_superuser: false,
            encoding: encoding.to_owned(),
        }
    }

    #[test]
    fn old_servers_standbys_and_other_encodings_are_faults() {
        let kinds = |server: Server| server.faults().into_iter().map(|fault| fault.kind).collect::<Vec<_>>();
        assert_eq!(kinds(server(140_000, false, "UTF8")), []);
        assert_eq!(kinds(server(130_020, false, "UTF8")), [SchemaFaultKind::Version]);
        assert_eq!(kinds(server(180_001, true, "UTF8")), [SchemaFaultKind::Standby]);
        assert_eq!(kinds(server(180_001, false, "SQL_ASCII")), [SchemaFaultKind::Encoding]);
        assert_eq!(kinds(server(180_001, false, "LATIN1")), [SchemaFaultKind::Encoding]);
    }
}
