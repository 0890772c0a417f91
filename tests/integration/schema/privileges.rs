//! The table of privileges in SECURITY.md: every role, every table and function of the outbox and the modules.

use std::collections::BTreeMap;

use postgres::table::Module;
use tokio_postgres::Client;

use crate::operating::commands::Setup;
use crate::support::database::run;

/// The privileges of the role $1 on each table and function of the schema `app`. Upper case: on the whole table; lower case: on
/// some columns.
const PRIVILEGES: &str = "
SELECT c.relname::text, coalesce(nullif(concat(
           CASE WHEN has_table_privilege($1, c.oid, 'SELECT') THEN 'S'
                WHEN has_any_column_privilege($1, c.oid, 'SELECT') THEN 's' END,
           CASE WHEN has_table_privilege($1, c.oid, 'INSERT') THEN 'I'
                WHEN has_any_column_privilege($1, c.oid, 'INSERT') THEN 'i' END,
           CASE WHEN has_table_privilege($1, c.oid, 'UPDATE') THEN 'U'
                WHEN has_any_column_privilege($1, c.oid, 'UPDATE') THEN 'u' END,
           CASE WHEN has_table_privilege($1, c.oid, 'DELETE') THEN 'D' END,
           CASE WHEN has_table_privilege($1, c.oid, 'TRUNCATE, REFERENCES, TRIGGER')
                  OR has_any_column_privilege($1, c.oid, 'REFERENCES') THEN 'other' END), ''), '-')
FROM pg_class AS c WHERE c.relnamespace = 'app'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
UNION ALL
SELECT p.proname::text || '()', CASE WHEN has_function_privilege($1, p.oid, 'EXECUTE') THEN 'X' ELSE '-' END
FROM pg_proc AS p WHERE p.pronamespace = 'app'::regnamespace
UNION ALL
SELECT c.relname::text || ' (sequence)', 'any'
FROM pg_class AS c WHERE c.relnamespace = 'app'::regnamespace
  AND CASE c.relkind WHEN 'S' THEN has_sequence_privilege($1, c.oid, 'USAGE, UPDATE') ELSE false END";

/// The rows of the table in SECURITY.md: the object, and one cell for each role.
fn documented() -> Vec<(String, Vec<String>)> {
    let text = include_str!("../../../SECURITY.md");
    let Some((_, table)) = text.split_once("| Object |") else {
        panic!("SECURITY.md has no table of privileges")
    };
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let mut cells = row.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`').to_owned());
        (cells.next().unwrap(), cells.collect())
    })
    .collect()
}

async fn privileges(client: &Client, role: &str) -> BTreeMap<String, String> {
    let rows = client.query(PRIVILEGES, &[&role]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

#[tokio::test]
async fn every_cell_of_the_table_in_security_md_is_true() {
    let setup = Setup::migrated("privileges_table").await;
    setup.relay(&["migrate", "--with", "inbox,idempotency,once"]).succeeds();
    let roles = setup.roles().clone();
    let printed = setup.relay(&["migrate", "--print-roles", "--role", roles.relay()]);
    run(&setup.client, printed.succeeds()).await;
    let (other, _) = setup.database.connect_as_new_role().await;

    let groups = Module::ALL.map(|module| roles.module(module));
    let [inbox, idempotency, once] = &groups;
    let columns = [
        roles.relay(),
        &roles.operator(),
        &roles.monitor(),
        &roles.writer(),
        inbox,
        idempotency,
        once,
        &other,
    ];
    let mut actual: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for role in columns {
        for (object, privileges) in privileges(&setup.client, role).await {
            actual.entry(object).or_default().push(privileges);
        }
    }
    let actual: Vec<(String, Vec<String>)> = actual.into_iter().collect();
    let mut expected = documented();
    expected.sort();
    let shown = |rows: &[(String, Vec<String>)]| -> String {
        rows.iter().map(|(object, cells)| format!("| `{object}` | {} |\n", cells.join(" | "))).collect()
    };
    assert_eq!(shown(&expected), shown(&actual), "documented and actual:\n{}", shown(&actual));
    setup.drop(&[&[&*other][..], &groups.each_ref().map(String::as_str)].concat()).await;
}

/// Also on the tables and functions of a later migration: no other role can use them.
#[tokio::test]
async fn no_function_can_be_executed_by_every_role() {
    let setup = Setup::migrated("privileges_public").await;
    setup.relay(&["migrate", "--with", "inbox,idempotency,once"]).succeeds();
    let public = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'app'::regnamespace
                  AND (proacl IS NULL OR EXISTS (SELECT FROM aclexplode(proacl) AS a WHERE a.grantee = 0))";
    assert_eq!(setup.number(public).await, 0);
    // A definer's function looks up every name in pg_catalog.
    let unsafe_path = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'app'::regnamespace AND prosecdef
                       AND proconfig IS DISTINCT FROM ARRAY['search_path=pg_catalog, pg_temp']";
    assert_eq!(setup.number(unsafe_path).await, 0);
    setup.drop(&[]).await;
}
