//! Checks that the connection is encrypted and that the server is verified.

use super::Context;
use crate::connection::fault::unavailable;
use crate::options::TlsMode;
use relay::failure::PostgresFault;
use settings::doctor::Finding;
use settings::doctor::codes::{TLS_OFF, TLS_UNVERIFIED};

const DOING: &str = "checking TLS";
/// Behind a pooler, this is about the pooler's connection.
const ENCRYPTED: &str = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";

pub(super) async fn findings(context: &Context<'_>) -> Result<Vec<Finding>, PostgresFault> {
    let connection = context.settings.postgres.connection();
    let connection = connection.map_err(|error| unavailable(DOING, error.to_string()))?;
    let mode = connection.tls.mode;
    if connection.is_local() || mode == TlsMode::VerifyFull {
        return Ok(Vec::new());
    }
    let rows = context.rows(DOING, ENCRYPTED, &[]).await?;
    let encrypted = rows.first().is_some_and(|row| row.get(0));
    let (place, remedy) = ("[postgres] sslmode", "set sslmode = \"verify-full\", and sslrootcert");
    let name = mode.name();
    let finding = match mode {
        TlsMode::Disable | TlsMode::Prefer if !encrypted => {
            let problem = format!("sslmode is {name}, and the connection to a remote host is not encrypted");
            TLS_OFF.found(place, problem, remedy)
        }
        _ => {
            let problem = format!("sslmode is {name}, and the host is remote");
            TLS_UNVERIFIED.found(place, problem, remedy)
        }
    };
    Ok(vec![finding])
}
