//! Questions on the terminal.

use crate::cli::exit::Failed;
use crate::config::Secret;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use std::io::{BufRead, IsTerminal, Write};

/// Whether a person can answer.
pub(crate) fn can_ask() -> bool {
    std::io::stdin().is_terminal()
}

/// Asks until there is an answer. `default` is used for an empty one.
pub(crate) fn ask(question: &str, default: Option<&str>) -> Result<String, Failed> {
    loop {
        let hint = default.map(|default| format!(" [{default}]")).unwrap_or_default();
        prompt(&format!("{question}{hint}: "))?;
        let answer = line()?;
        match (answer.trim(), default) {
            ("", Some(default)) => return Ok(default.to_owned()),
            ("", None) => {}
            (answer, _) => return Ok(answer.to_owned()),
        }
    }
}

/// Asks for a password, which the terminal does not show. `None` for an empty one.
pub(crate) fn password(question: &str) -> Result<Option<Secret>, Failed> {
    let stdin = std::io::stdin();
    let unusable = |error: rustix::io::Errno| failed(&std::io::Error::from(error));
    let shown = tcgetattr(&stdin).map_err(unusable)?;
    let mut hidden = shown.clone();
    hidden.local_modes.remove(LocalModes::ECHO);
    hidden.local_modes.insert(LocalModes::ECHONL);
    // Before the question, so that even a quick answer is hidden.
    tcsetattr(&stdin, OptionalActions::Flush, &hidden).map_err(unusable)?;
    let answer = prompt(&format!("{question}: ")).and_then(|()| line());
    tcsetattr(&stdin, OptionalActions::Flush, &shown).map_err(unusable)?;
    let answer = answer?;
    Ok((!answer.is_empty()).then(|| Secret::new(answer)))
}

/// Asks whether to continue. Anything but yes means no.
pub(crate) fn confirm(question: &str) -> Result<bool, Failed> {
    prompt(&format!("{question} [y/N] "))?;
    Ok(["y", "yes"].contains(&line()?.trim().to_lowercase().as_str()))
}

/// On stderr, because stdout may be a file.
fn prompt(text: &str) -> Result<(), Failed> {
    let mut stderr = std::io::stderr().lock();
    stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush()).map_err(|error| failed(&error))
}

/// A line without its line break.
fn line() -> Result<String, Failed> {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line) {
        Ok(0) => Err(Failed::Failure(anyhow::anyhow!("There was no answer, so nothing was changed."))),
        Ok(_) => Ok(line.trim_end_matches(['\r', '\n']).to_owned()),
        Err(error) => Err(failed(&error)),
    }
}

fn failed(error: &std::io::Error) -> Failed {
    Failed::Failure(anyhow::anyhow!(
        "Cannot use the terminal: {error}. Nothing was changed. Pass the settings as arguments, with --yes"
    ))
}
