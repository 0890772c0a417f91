//! The rights on the tables of the optional modules, as SQL that gives them where a table is there: a schema has all of the
//! modules, some, or none.

use crate::postgres::access::grants::{Right, of, right, together};
use crate::postgres::access::roles::RelayRole;
use crate::postgres::schema::migrate::Module;
use crate::postgres::table::{TableName, quote_identifier, quote_literal};

/// Who may do what with one module.
struct Rights {
    table: &'static str,
    /// The reaper's, by the daemon and by hand. Rows are deleted by `ctid`; neither an id, nor a request, nor a response is
    /// read.
    reap: &'static [Right],
    reaping: &'static [&'static str],
    /// What a person who is asked about a row looks at: no request, no response, and nothing that a phase has kept.
    look: &'static [Right],
    application: &'static [Right],
    calls: &'static [&'static str],
}

const INBOX: Rights = Rights {
    table: "{processed_message}",
    reap: &[
        of("SELECT", "{processed_message}", &["ctid", "processed_at"]),
        right("DELETE", "{processed_message}"),
    ],
    reaping: &["{inbox_reap}"],
    look: &[right("SELECT", "{processed_message}")],
    application: &[right("SELECT", "{processed_message}"), right("INSERT", "{processed_message}")],
    calls: &["{inbox_receive}", "{inbox_receive_many}"],
};

const IDEMPOTENCY: Rights = Rights {
    table: "{idempotency_key}",
    reap: &[
        of("SELECT", "{idempotency_key}", &["ctid", "created_at", "finished_at"]),
        right("DELETE", "{idempotency_key}"),
    ],
    reaping: &["{idempotency_reap}", "{idempotency_unfinished}"],
    look: &[of(
        "SELECT",
        "{idempotency_key}",
        &[
            "scope",
            "key",
            "created_at",
            "locked_at",
            "locked_until",
            "attempts",
            "retry_at",
            "recovery_point",
            "finished_at",
            "status",
        ],
    )],
    application: &[
        right("SELECT", "{idempotency_key}"),
        right("INSERT", "{idempotency_key}"),
        right("UPDATE", "{idempotency_key}"),
        right("DELETE", "{idempotency_key}"),
    ],
    calls: &[
        "{idempotency_fingerprint}",
        "{idempotency_begin}",
        "{idempotency_finish}",
        "{idempotency_reach}",
        "{idempotency_extend}",
        "{idempotency_release}",
        "{idempotency_abandoned}",
    ],
};

const ONCE: Rights = Rights {
    table: "{once_key}",
    reap: &[of("SELECT", "{once_key}", &["ctid", "expires_at"]), right("DELETE", "{once_key}")],
    reaping: &["{once_reap}"],
    look: &[right("SELECT", "{once_key}")],
    application: &[
        right("SELECT", "{once_key}"),
        right("INSERT", "{once_key}"),
        right("UPDATE", "{once_key}"),
    ],
    calls: &["{once_claim}"],
};

fn rights_of(module: Module) -> Rights {
    match module {
        Module::Inbox => INBOX,
        Module::Idempotency => IDEMPOTENCY,
        Module::Once => ONCE,
    }
}

/// What `reap` needs of the modules that are there.
pub(crate) fn reap_rights() -> Vec<Right> {
    Module::ALL.into_iter().flat_map(|module| rights_of(module).reap).copied().collect()
}

/// For each module a block that gives the four roles their rights if its table is there, and takes back what they had
/// beyond them.
pub(crate) fn module_grants(table: &TableName, role: &RelayRole) -> String {
    Module::ALL.into_iter().map(|module| block(table, role, &rights_of(module))).collect()
}

fn block(table: &TableName, role: &RelayRole, rights: &Rights) -> String {
    let name = table.render(rights.table);
    let (relay, operator, writer) = (role.relay().to_owned(), role.operator(), role.writer());
    let roles = [&relay, &operator, &role.monitor(), &writer].map(|role| quote_identifier(role)).join(", ");
    let mut statements = vec![format!("REVOKE ALL ON {name} FROM {roles};")];
    for (role, lists, functions) in [
        (&relay, vec![rights.reap], rights.reaping),
        (&operator, vec![rights.look, rights.reap], rights.reaping),
        (&writer, vec![rights.application], rights.calls),
    ] {
        statements.extend(together(&lists).iter().map(|right| right.grant(table, role)));
        let functions =
            functions.iter().map(|function| table.render(function)).collect::<Vec<_>>().join(", ");
        statements.push(format!("GRANT EXECUTE ON FUNCTION {functions} TO {};", quote_identifier(role)));
    }
    format!(
        "DO $grants$ BEGIN\n    IF pg_catalog.to_regclass({}) IS NOT NULL THEN\n        {}\n    END IF;\nEND $grants$;\n",
        quote_literal(&name),
        statements.join("\n        ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::table::unknown_placeholders;

    #[test]
    fn every_name_is_one_of_the_schema() {
        for module in Module::ALL {
            let Rights { table, reap, reaping, look, application, calls } = rights_of(module);
            let of_rights = [reap, look, application].concat().into_iter().map(|right| right.on);
            for name in of_rights.chain(reaping.iter().chain(calls).copied()).chain([table]) {
                assert_eq!(unknown_placeholders(name), [""; 0], "{name}");
            }
        }
    }

    #[test]
    fn whoever_reaps_or_looks_reads_no_request_and_no_response() {
        for right in [IDEMPOTENCY.reap, IDEMPOTENCY.look].concat() {
            let whole = right.columns.is_empty() && right.privilege == "SELECT";
            assert!(!whole, "{right:?}");
            for secret in ["request", "body", "headers", "phases", "fingerprint", "token"] {
                assert!(!right.columns.contains(&secret), "{right:?}");
            }
        }
    }
}
