//! The privileges on the tables of the optional modules. The SQL grants them only for modules that are installed.

use crate::access::grants::{Privilege, grants, on_columns, privilege};
use crate::access::roles::RelayRole;
use crate::schema::series::Module;
use crate::table::{TableName, fill, quote_identifier, quote_literal};

/// The privileges on one module. No role can write its tables.
struct ModulePrivileges {
    table: &'static str,
    /// The services that use several logins.
    services: &'static str,
    /// For the reaper and `reap`. They read no id, request or response.
    reap: &'static [Privilege],
    /// For operators: no request, no response and no data of a phase.
    operator: &'static [Privilege],
    /// For applications.
    call: &'static [Privilege],
}

const INBOX: ModulePrivileges = ModulePrivileges {
    table: "{processed_message}",
    services: "{inbox_service}",
    reap: &[
        on_columns("SELECT", "{processed_message}", &["processed_at"]),
        privilege("EXECUTE", "{inbox_reap}"),
    ],
    operator: &[privilege("SELECT", "{processed_message}"), privilege("SELECT", "{inbox_service}")],
    call: &[privilege("EXECUTE", "{inbox_receive}"), privilege("EXECUTE", "{inbox_receive_many}")],
};

const IDEMPOTENCY: ModulePrivileges = ModulePrivileges {
    table: "{idempotency_key}",
    services: "{idempotency_service}",
    reap: &[
        on_columns(
            "SELECT",
            "{idempotency_key}",
            &["created_at", "finished_at", "recovery_point", "locked_until"],
        ),
        privilege("EXECUTE", "{idempotency_reap}"),
        privilege("EXECUTE", "{idempotency_unfinished}"),
    ],
    operator: &[
        on_columns(
            "SELECT",
            "{idempotency_key}",
            &[
                "scope",
                "key",
                "owner",
                "created_at",
                "locked_at",
                "locked_until",
                "attempts",
                "retry_at",
                "recovery_point",
                "finished_at",
                "status",
            ],
        ),
        privilege("SELECT", "{idempotency_service}"),
    ],
    call: &[
        privilege("EXECUTE", "{idempotency_fingerprint}"),
        privilege("EXECUTE", "{idempotency_begin}"),
        privilege("EXECUTE", "{idempotency_finish}"),
        privilege("EXECUTE", "{idempotency_reach}"),
        privilege("EXECUTE", "{idempotency_extend}"),
        privilege("EXECUTE", "{idempotency_release}"),
        privilege("EXECUTE", "{idempotency_abandoned}"),
    ],
};

const ONCE: ModulePrivileges = ModulePrivileges {
    table: "{once_key}",
    services: "{once_service}",
    reap: &[on_columns("SELECT", "{once_key}", &["expires_at"]), privilege("EXECUTE", "{once_reap}")],
    operator: &[privilege("SELECT", "{once_key}"), privilege("SELECT", "{once_service}")],
    call: &[privilege("EXECUTE", "{once_claim}")],
};

fn privileges_of(module: Module) -> ModulePrivileges {
    match module {
        Module::Inbox => INBOX,
        Module::Idempotency => IDEMPOTENCY,
        Module::Once => ONCE,
    }
}

/// For `reap`, on all modules.
pub fn reap_privileges() -> Vec<Privilege> {
    Module::ALL.into_iter().flat_map(|module| privileges_of(module).reap).copied().collect()
}

/// Skips a module that is not installed, or whose migrations are pending. In earlier versions, all writers could use the
/// modules: they keep that.
const BLOCK: &str = "
DO $$
DECLARE
    member name;
BEGIN
    IF pg_catalog.to_regclass({services_literal}) IS NULL THEN
        RETURN;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = {group_literal}) THEN
        CREATE ROLE {group} NOLOGIN;
    END IF;
    FOR member IN
        SELECT m.rolname
        FROM pg_catalog.pg_proc AS p
        CROSS JOIN LATERAL pg_catalog.aclexplode(p.proacl) AS a
        JOIN pg_catalog.pg_roles AS w ON w.oid = a.grantee AND w.rolname = {writer_literal}
        JOIN pg_catalog.pg_auth_members AS am ON am.roleid = w.oid
        JOIN pg_catalog.pg_roles AS m ON m.oid = am.member AND m.rolname <> current_user
        WHERE p.oid = {call_literal}::pg_catalog.regproc
    LOOP
        EXECUTE pg_catalog.format('GRANT %I TO %I', {group_literal}, member);
    END LOOP;
    REVOKE ALL ON {table}, {services} FROM {roles};
    REVOKE ALL ON FUNCTION {functions} FROM {roles};
    {grants}
END $$;
";

/// For each module, a block that creates its group, revokes all earlier privileges of the roles and grants the current ones.
pub(crate) fn module_grants(table: &TableName, role: &RelayRole) -> String {
    Module::ALL.into_iter().map(|module| block(table, role, module)).collect()
}

fn block(table: &TableName, role: &RelayRole, module: Module) -> String {
    let privileges = privileges_of(module);
    let (relay, operator, writer, group) =
        (role.relay().to_owned(), role.operator(), role.writer(), role.module(module));
    let grants: String = [
        (&relay, vec![privileges.reap]),
        (&operator, vec![privileges.operator, privileges.reap]),
        (&group, vec![privileges.call]),
    ]
    .iter()
    .map(|(role, lists)| grants(table, role, lists))
    .collect();
    let functions: Vec<String> = [privileges.reap, privileges.call]
        .concat()
        .iter()
        .filter(|privilege| privilege.kind == "EXECUTE")
        .map(|privilege| table.render(privilege.on))
        .collect();
    let first_call = privileges.call.first().map_or("", |privilege| privilege.on);
    fill(BLOCK, |placeholder| match placeholder {
        "services_literal" => Some(quote_literal(&table.render(privileges.services))),
        "services" => Some(table.render(privileges.services)),
        "table" => Some(table.render(privileges.table)),
        "group" => Some(quote_identifier(&group)),
        "group_literal" => Some(quote_literal(&group)),
        "writer_literal" => Some(quote_literal(&writer)),
        "call_literal" => Some(quote_literal(&table.render(first_call))),
        "functions" => Some(functions.join(", ")),
        "roles" => {
            let roles = [&relay, &operator, &role.monitor(), &writer, &group];
            Some(roles.map(|role| quote_identifier(role)).join(", "))
        }
        "grants" => Some(grants.trim_end().replace('\n', "\n    ")),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::unknown_placeholders;

    #[test]
    fn privileges_name_known_relations_and_functions() {
        for module in Module::ALL {
            let privileges = privileges_of(module);
            let granted = [privileges.reap, privileges.operator, privileges.call].concat();
            let named = granted.into_iter().map(|privilege| privilege.on);
            for name in named.chain([privileges.table, privileges.services]) {
                assert_eq!(unknown_placeholders(name), [""; 0], "{name}");
            }
        }
    }

    #[test]
    fn reaper_and_operators_read_no_request_and_no_response() {
        for privilege in [IDEMPOTENCY.reap, IDEMPOTENCY.operator].concat() {
            let of_keys = privilege.on == IDEMPOTENCY.table;
            let whole = of_keys && privilege.columns.is_empty() && privilege.kind == "SELECT";
            assert!(!whole, "{privilege:?}");
            for secret in ["request", "body", "headers", "phases", "fingerprint", "token"] {
                assert!(!privilege.columns.contains(&secret), "{privilege:?}");
            }
        }
    }
}
