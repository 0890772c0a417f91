//! What a person does about a connection that did not come about. Such an error has no SQLSTATE: it is not the server that
//! reports it, but OpenSSL or the client library.

use crate::certificates;

/// Words of the client library, each with what a person can do, as an imperative without a full stop.
const REMEDIES: &[(&str, &str)] = &[
    (
        "server does not support TLS",
        "set ssl = on in postgresql.conf, or, on a network that nobody else is on, sslmode = \"disable\"",
    ),
    (
        "channel binding",
        "store the password as scram-sha-256 (password_encryption), and let no pooler or proxy end TLS in between; or \
         leave channel_binding out",
    ),
    (
        "error communicating with the server: Connection reset by peer",
        "look at the server's log: so it also ends a connection whose client certificate it refuses",
    ),
    ("password missing", "set [postgres] password_file: the server asks for a password"),
    (
        "unsupported authentication method",
        "let pg_hba.conf ask for scram-sha-256, or for a client certificate by cert",
    ),
    (
        "no hostname provided for TLS handshake",
        "name a host in the url beside hostaddr: it is what the certificate must have",
    ),
];

/// What the server says when the certificate that we saw is not its own: somebody ends TLS in between.
const INTERCEPTED: &str = "channel binding check failed";

/// What a person can do about it, if this is what the server said.
pub(crate) fn remedy_if_intercepted(error: &str) -> Option<String> {
    let remedy = "look for a pooler, proxy or stranger that ends TLS between the relay and the server; if it is meant to, \
                  set channel_binding=disable in the url";
    error.contains(INTERCEPTED).then(|| remedy.to_owned())
}

/// What a person can do about an error without an SQLSTATE, if it is one of these.
pub(crate) fn remedy(error: &str) -> Option<String> {
    let own = REMEDIES.iter().find(|(words, _)| error.contains(words));
    if let Some((_, remedy)) = own {
        return Some((*remedy).to_owned());
    }
    let remedy = certificates::remedy(error)?;
    Some(format!(
        "{remedy} (sslrootcert, sslcert, sslkey); the files are read again at each attempt, credentials of systemd at a restart"
    ))
}
