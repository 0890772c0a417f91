//! The clients' journals, as tables for the checks.

use std::path::Path;

use tokio_postgres::Client;

/// One row per line, and views for each kind of line. The provider approves up to 500.00.
const TABLES: &str = "
CREATE SCHEMA journal;
CREATE TABLE journal.line (line jsonb NOT NULL);";

const READ: &str = "
CREATE TABLE journal.asked AS
SELECT asked ->> 'key' AS key, asked ->> 'reference' AS reference, asked ->> 'account' AS account,
       (asked ->> 'cents')::bigint AS cents, (asked ->> 'cents')::bigint <= 50000 AS approved
FROM journal.line, LATERAL (SELECT line -> 'asked' AS asked) AS one WHERE line ? 'asked';
CREATE TABLE journal.answer AS
SELECT answer ->> 'key' AS key, (answer ->> 'status')::int AS status, answer ->> 'body' AS body,
       (answer ->> 'replayed')::boolean AS replayed, (answer ->> 'attempts')::bigint AS attempts
FROM journal.line, LATERAL (SELECT line -> 'answer' AS answer) AS one WHERE line ? 'answer';
CREATE TABLE journal.mismatch AS
SELECT line #>> '{mismatch,key}' AS key, (line #>> '{mismatch,status}')::int AS status
FROM journal.line WHERE line ? 'mismatch';";

/// Creates the tables in a separate schema.
pub async fn load(client: &Client, journals: &[impl AsRef<Path>]) {
    client.batch_execute(TABLES).await.unwrap();
    for journal in journals {
        let text = std::fs::read_to_string(journal).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let sql = "INSERT INTO journal.line SELECT line::jsonb FROM unnest($1::text[]) AS line";
        client.execute(sql, &[&lines]).await.unwrap();
    }
    client.batch_execute(READ).await.unwrap();
}
