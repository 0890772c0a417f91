//! The privileges on the tables of the optional modules. The SQL grants them only for modules that are installed.

use crate::postgres::access::grants::{Privilege, on_columns, privilege, union};
use crate::postgres::access::roles::RelayRole;
use crate::postgres::schema::migrate::Module;
use crate::postgres::table::{TableName, quote_identifier, quote_literal};

/// The privileges on one module.
struct ModulePrivileges {
    table: &'static str,
    /// For the reaper and `reap`. They delete rows by `ctid` and read no id, request or response.
    reap: &'static [Privilege],
    reap_functions: &'static [&'static str],
    /// For operators: no request, no response and no data of a phase.
    operator: &'static [Privilege],
    application: &'static [Privilege],
    application_functions: &'static [&'static str],
}

const INBOX: ModulePrivileges = ModulePrivileges {
    table: "{processed_message}",
    reap: &[
        on_columns("SELECT", "{processed_message}", &["ctid", "processed_at"]),
        privilege("DELETE", "{processed_message}"),
    ],
    reap_functions: &["{inbox_reap}"],
    operator: &[privilege("SELECT", "{processed_message}")],
    application: &[privilege("SELECT", "{processed_message}"), privilege("INSERT", "{processed_message}")],
    application_functions: &["{inbox_receive}", "{inbox_receive_many}"],
};

const IDEMPOTENCY: ModulePrivileges = ModulePrivileges {
    table: "{idempotency_key}",
    reap: &[
        on_columns("SELECT", "{idempotency_key}", &["ctid", "created_at", "finished_at"]),
        privilege("DELETE", "{idempotency_key}"),
    ],
    reap_functions: &["{idempotency_reap}", "{idempotency_unfinished}"],
    operator: &[on_columns(
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
        privilege("SELECT", "{idempotency_key}"),
        privilege("INSERT", "{idempotency_key}"),
        privilege("UPDATE", "{idempotency_key}"),
        privilege("DELETE", "{idempotency_key}"),
    ],
    application_functions: &[
        "{idempotency_fingerprint}",
        "{idempotency_begin}",
        "{idempotency_finish}",
        "{idempotency_reach}",
        "{idempotency_extend}",
        "{idempotency_release}",
        "{idempotency_abandoned}",
    ],
};

const ONCE: ModulePrivileges = ModulePrivileges {
    table: "{once_key}",
    reap: &[on_columns("SELECT", "{once_key}", &["ctid", "expires_at"]), privilege("DELETE", "{once_key}")],
    reap_functions: &["{once_reap}"],
    operator: &[privilege("SELECT", "{once_key}")],
    application: &[
        privilege("SELECT", "{once_key}"),
        privilege("INSERT", "{once_key}"),
        privilege("UPDATE", "{once_key}"),
    ],
    application_functions: &["{once_claim}"],
};

fn privileges_of(module: Module) -> ModulePrivileges {
    match module {
        Module::Inbox => INBOX,
        Module::Idempotency => IDEMPOTENCY,
        Module::Once => ONCE,
    }
}

/// For `reap`, on all modules.
pub(crate) fn reap_privileges() -> Vec<Privilege> {
    Module::ALL.into_iter().flat_map(|module| privileges_of(module).reap).copied().collect()
}

/// For each module, a block that revokes all earlier privileges of the roles and grants the current ones, if the module's
/// table exists.
pub(crate) fn module_grants(table: &TableName, role: &RelayRole) -> String {
    Module::ALL.into_iter().map(|module| block(table, role, &privileges_of(module))).collect()
}

fn block(table: &TableName, role: &RelayRole, privileges: &ModulePrivileges) -> String {
    let name = table.render(privileges.table);
    let (relay, operator, writer) = (role.relay().to_owned(), role.operator(), role.writer());
    let roles = [&relay, &operator, &role.monitor(), &writer].map(|role| quote_identifier(role)).join(", ");
    let mut statements = vec![format!("REVOKE ALL ON {name} FROM {roles};")];
    for (role, lists, functions) in [
        (&relay, vec![privileges.reap], privileges.reap_functions),
        (&operator, vec![privileges.operator, privileges.reap], privileges.reap_functions),
        (&writer, vec![privileges.application], privileges.application_functions),
    ] {
        statements.extend(union(&lists).iter().map(|privilege| privilege.grant(table, role)));
        let functions =
            functions.iter().map(|function| table.render(function)).collect::<Vec<_>>().join(", ");
        statements.push(format!("GRANT EXECUTE ON FUNCTION {functions} TO {};", quote_identifier(role)));
    }
    format!(
        "DO $$ BEGIN\n    IF pg_catalog.to_regclass({}) IS NOT NULL THEN\n        {}\n    END IF;\nEND $$;\n",
        quote_literal(&name),
        statements.join("\n        ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::table::unknown_placeholders;

    #[test]
    fn privileges_name_known_relations_and_functions() {
        for module in Module::ALL {
            let privileges = privileges_of(module);
            let relations = [privileges.reap, privileges.operator, privileges.application]
                .concat()
                .into_iter()
                .map(|privilege| privilege.on);
            let functions = privileges.reap_functions.iter().chain(privileges.application_functions).copied();
            for name in relations.chain(functions).chain([privileges.table]) {
                assert_eq!(unknown_placeholders(name), [""; 0], "{name}");
            }
        }
    }

    #[test]
    fn reaper_and_operators_read_no_request_and_no_response() {
        for privilege in [IDEMPOTENCY.reap, IDEMPOTENCY.operator].concat() {
            let whole = privilege.columns.is_empty() && privilege.kind == "SELECT";
            assert!(!whole, "{privilege:?}");
            for secret in ["request", "body", "headers", "phases", "fingerprint", "token"] {
                assert!(!privilege.columns.contains(&secret), "{privilege:?}");
            }
        }
    }
}
