//! Carries out the plan. Each step is complete or did nothing, and none overwrites what another process has created.

use super::files::{self, CONFIG_MODE, ConfigFileState, SECRET_MODE};
use super::inspect::{Servers, topic_failed};
use super::plan::{Password, Plan};
use crate::cli::exit::Failed;
use crate::cli::migrate::failed;
use crate::cli::terminal::output;
use kafka::operate::topics::Mode;
use postgres::schema::migrate;

/// The password file comes first, because a role whose password is lost cannot be used. The configuration comes last.
pub(super) async fn apply(plan: &Plan<'_>, servers: &mut Servers) -> Result<(), Failed> {
    let file = &plan.wanted.file;
    write_password(plan)?;
    create_tables(plan, servers).await.map_err(repeatable)?;
    create_topics(plan, servers).await.map_err(repeatable)?;
    match plan.config {
        ConfigFileState::Existing => return Ok(()),
        ConfigFileState::Missing => files::write_new(file, &plan.config_text, CONFIG_MODE),
        ConfigFileState::Packaged => files::replace_packaged(file, &plan.config_text),
    }
    .map_err(repeatable)?;
    done(&format!("file {}", file.display()))
}

fn write_password(plan: &Plan<'_>) -> Result<(), Failed> {
    let Password::Generated(password) = &plan.password else { return Ok(()) };
    let file = &plan.password_file;
    files::create_folder(files::folder(file))?;
    files::write_new(file, &format!("{}\n", password.expose()), SECRET_MODE)?;
    done(&format!("file {}", file.display()))
}

async fn create_tables(plan: &Plan<'_>, servers: &mut Servers) -> Result<(), Failed> {
    let table = &plan.wanted.table;
    let applied = migrate::apply(&mut servers.connection, table).await.map_err(|error| failed(&error))?;
    if !applied.is_empty() {
        done(&format!("tables of {table}"))?;
    }
    if plan.grants() {
        plan.roles.create(&mut servers.connection).await.map_err(|error| {
            Failed::Failure(
                anyhow::Error::new(error).context("creating the roles and granting their privileges"),
            )
        })?;
        done(&format!("role {} and the group roles", plan.wanted.role))?;
    }
    Ok(())
}

async fn create_topics(plan: &Plan<'_>, servers: &Servers) -> Result<(), Failed> {
    let Some(topics) = &servers.topics else { return Ok(()) };
    for (topic, _) in plan.topics.iter().filter(|(_, exists)| !exists) {
        let created = topics.create(topic, plan.wanted.shape, Mode::Create).await;
        if created.map_err(|failure| topic_failed(&failure))? {
            done(&format!("topic {topic}"))?;
        }
    }
    Ok(())
}

fn done(what: &str) -> Result<(), Failed> {
    output::line(&format!("{:<14} {what}", "done")).map(|_| ())
}

/// Adds what to do after a step that failed.
fn repeatable(failed: Failed) -> Failed {
    let what = "`init` completed only some of its steps. Fix the cause, then run the command again: it keeps what exists";
    match failed {
        Failed::Failure(error) => Failed::Failure(error.context(what)),
        Failed::Unavailable(error) => Failed::Unavailable(error.context(what)),
        Failed::Configuration(error) => Failed::Configuration(error.context(what)),
        usage @ Failed::Usage(_) => usage,
    }
}
