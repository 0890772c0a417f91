//! The database URL of the owner, and that of the relay, which differs only in the role.

use crate::config::Secret;

/// A URL such as `postgres://postgres@localhost/app`, without a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnerUrl {
    /// As given.
    text: String,
    scheme: &'static str,
    /// The role, percent-encoded as given; `None` for the name of the system user.
    user: Option<String>,
    /// Everything after the role.
    rest: String,
}

const SCHEMES: [&str; 2] = ["postgres://", "postgresql://"];

/// Parameters of the owner that the relay's URL must not contain, or that the relay's URL sets elsewhere.
const REFUSED: [(&str, &str); 6] = [
    ("user", "write the role before the host, as in postgres://ROLE@HOST/DATABASE"),
    ("password", PASSWORD),
    ("dbname", "write the database after the host, as in postgres://ROLE@HOST/DATABASE"),
    ("sslcert", CERTIFICATE),
    ("sslkey", CERTIFICATE),
    ("sslpassword", CERTIFICATE),
];
const PASSWORD: &str = "remove the password, and set the environment variable PGPASSWORD. Other users can see the \
                        arguments of a command";
const CERTIFICATE: &str = "create the tables and roles with `outbox-relay migrate`, because the relay needs a client \
                           certificate of its own";

impl OwnerUrl {
    /// Parses what `init` needs to know. The configuration checks everything else.
    ///
    /// # Errors
    ///
    /// The problem and a remedy, as two sentences. The text is not quoted.
    pub(super) fn parse(text: &str) -> Result<OwnerUrl, String> {
        let scheme = SCHEMES.into_iter().find(|scheme| text.starts_with(scheme)).ok_or(
            "The database URL does not start with postgres://. Fix: write it as postgres://ROLE@HOST/DATABASE",
        )?;
        let after = &text[scheme.len()..];
        let (authority, path) = after.split_at(after.find(['/', '?', '#']).unwrap_or(after.len()));
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        if user.is_some_and(|user| user.contains(':')) {
            return Err(format!("The database URL contains a password. Fix: {PASSWORD}"));
        }
        let (name, parameters) = path.split_once('?').unwrap_or((path, ""));
        if name.trim_start_matches('/').is_empty() {
            return Err("The database URL names no database. Fix: write it as postgres://ROLE@HOST/DATABASE"
                .to_owned());
        }
        for key in parameters.split('&').map(|parameter| parameter.split('=').next().unwrap_or_default()) {
            if let Some((key, fix)) = REFUSED.iter().find(|(refused, _)| *refused == key) {
                return Err(format!("The database URL contains the parameter {key}. Fix: {fix}"));
            }
        }
        let user = user.filter(|user| !user.is_empty()).map(str::to_owned);
        Ok(OwnerUrl { text: text.to_owned(), scheme, user, rest: format!("{host}{path}") })
    }

    /// As given.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The same URL for another role.
    pub(super) fn of_role(&self, role: &str) -> String {
        let OwnerUrl { scheme, rest, .. } = self;
        format!("{scheme}{}@{rest}", percent_encode(role))
    }

    /// Whether this is the URL of that role.
    pub(super) fn is_of(&self, role: &str) -> bool {
        self.user.as_ref().is_some_and(|user| *user == percent_encode(role))
    }
}

fn percent_encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte.into()),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// The owner's password, in the variable that psql reads too.
pub(super) fn password_of_environment() -> Option<Secret> {
    let password = std::env::var("PGPASSWORD").ok();
    password.filter(|password| !password.is_empty()).map(Secret::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_of_the_relay_differs_only_in_the_role() {
        for (owner, relay) in [
            ("postgres://postgres@localhost/app", "postgres://the%20relay@localhost/app"),
            (
                "postgresql://h1:5432,h2/app?sslmode=require",
                "postgresql://the%20relay@h1:5432,h2/app?sslmode=require",
            ),
            (
                "postgres://alice@/app?host=/run/postgresql",
                "postgres://the%20relay@/app?host=/run/postgresql",
            ),
            ("postgres:///app?host=/run/postgresql", "postgres://the%20relay@/app?host=/run/postgresql"),
        ] {
            let url = OwnerUrl::parse(owner).unwrap();
            assert_eq!((url.text(), url.of_role("the relay").as_str()), (owner, relay));
        }
        assert!(OwnerUrl::parse("postgres://a%20b@h/app").unwrap().is_of("a b"));
        assert!(!OwnerUrl::parse("postgres://h/app").unwrap().is_of("h"));
    }

    #[test]
    fn a_url_that_cannot_be_used_is_refused_without_quoting_it() {
        for (url, reason) in [
            ("host=localhost password=hunter2", "does not start with postgres://"),
            ("", "does not start with postgres://"),
            ("postgres://postgres:hunter2@localhost/app", "contains a password. Fix: remove the password"),
            ("postgres://localhost/app?password=hunter2", "parameter password. Fix: remove the password"),
            ("postgres://localhost/app?user=hunter2", "parameter user."),
            ("postgres://localhost/app?a=b&sslkey=hunter2", "parameter sslkey."),
            ("postgres://hunter2@localhost", "names no database"),
            ("postgres://hunter2@localhost/?host=x", "names no database"),
        ] {
            let error = OwnerUrl::parse(url).unwrap_err();
            assert!(
                error.contains(reason) && error.contains(" Fix: ") && !error.contains("hunter2"),
                "{error}"
            );
        }
    }
}
