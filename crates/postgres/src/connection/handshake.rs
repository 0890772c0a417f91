//! Remedies for errors of OpenSSL or the client library while connecting. Such errors have no SQLSTATE.

use settings::certificates;

/// Parts of error messages of the client library, each with a remedy: an imperative without a full stop.
const REMEDIES: &[(&str, &str)] = &[
    (
        "server does not support TLS",
        "set ssl = on in postgresql.conf or, on a private network, sslmode = \"disable\"",
    ),
    (
        "channel binding",
        "store the password as scram-sha-256 (password_encryption) and terminate TLS at the server, not at a pooler \
         or proxy; or remove channel_binding",
    ),
    (
        "error communicating with the server: Connection reset by peer",
        "check that the server is running, and read its log. If the server requires a client certificate, it may \
         have \
         rejected the relay's certificate",
    ),
    (
        "Connection refused",
        "check the host and the port in [postgres] url, and whether the server is running",
    ),
    ("failed to lookup address information", "check the host in [postgres] url, and DNS"),
    (
        "password missing",
        "the server requires a password: set [postgres] password_file or, if the environment sets the url, \
         OUTBOX_RELAY__POSTGRES__PASSWORD",
    ),
    ("unsupported authentication method", "use scram-sha-256 or cert in pg_hba.conf"),
    (
        "may be used",
        "store the password as scram-sha-256 (password_encryption, and the method in pg_hba.conf), or set \
         sslmode=verify-full. If you trust the process that listens there, add the method to require_auth in the url",
    ),
    ("requirepeer is", "find out which process listens on the socket, or correct requirepeer in the url"),
];

/// The server's message if the relay received a certificate other than the server's, because something else terminates TLS.
const INTERCEPTED: &str = "channel binding check failed";

/// The remedy for [`INTERCEPTED`].
pub(crate) fn remedy_if_intercepted(error: &str) -> Option<String> {
    let remedy = "check whether a pooler, proxy or attacker terminates TLS between the relay and the server. If \
         this is intended, set channel_binding=disable in the url";
    error.contains(INTERCEPTED).then(|| remedy.to_owned())
}

/// The remedy for an error without an SQLSTATE, if one is known.
pub(crate) fn remedy(error: &str) -> Option<String> {
    let own = REMEDIES.iter().find(|(words, _)| error.contains(words));
    if let Some((_, remedy)) = own {
        return Some((*remedy).to_owned());
    }
    let remedy = certificates::remedy(error)?;
    Some(format!(
        "{remedy} (sslrootcert, sslcert, sslkey). Files are reloaded at each attempt, systemd credentials only at a restart"
    ))
}
