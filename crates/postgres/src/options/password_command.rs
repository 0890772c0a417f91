//! `[postgres] password_command`: a program and its arguments.

use std::fmt;

use settings::findings::Problem;
use settings::reader::Reader;
use settings::reader::Value;
use settings::secret::HIDDEN;
use settings::setting::Setting;

/// A program that prints a password, and its arguments. They may contain a secret, so `Debug` hides them.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordCommand {
    program: String,
    arguments: Vec<String>,
}

impl PasswordCommand {
    /// The program, which is looked up in `PATH` unless it contains a slash.
    pub fn program(&self) -> &str {
        &self.program
    }

    /// Its arguments. No shell interprets them.
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }

    /// From the program and its arguments. `None` if there is no program, or if a word contains a NUL character, which the
    /// operating system cannot pass on.
    pub fn new(words: Vec<String>) -> Option<PasswordCommand> {
        if words.iter().any(|word| word.contains('\0')) {
            return None;
        }
        let mut words = words.into_iter();
        let program = words.next().filter(|program| !program.trim().is_empty())?;
        Some(PasswordCommand { program, arguments: words.collect() })
    }
}

impl fmt::Debug for PasswordCommand {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PasswordCommand(hidden)")
    }
}

impl Value for PasswordCommand {
    fn from_text(text: &str, setting: &Setting, _: &Reader) -> Result<PasswordCommand, Problem> {
        let words = words(text).ok_or_else(|| {
            let help = format!("for example {}", example(setting));
            Problem::new(format!("{setting} must be an array of strings"), help)
        })?;
        PasswordCommand::new(words).ok_or_else(|| {
            let help = format!("for example {}. Remove it if you need no command", example(setting));
            Problem::new(format!("{setting} names no program"), help)
        })
    }

    fn shown(&self) -> Option<String> {
        Some(HIDDEN.to_owned())
    }
}

fn example(setting: &Setting) -> String {
    use settings::setting::Fallback::{Default, Required, Unset};
    let (Default(text) | Unset(text) | Required(text)) = setting.fallback;
    format!("{} = {text}", setting.key)
}

/// The strings of an array in TOML.
fn words(text: &str) -> Option<Vec<String>> {
    let table: toml::Table = format!("words = {text}").parse().ok()?;
    let mut values = table.into_iter();
    match (values.next(), values.next()) {
        (Some((_, toml::Value::Array(words))), None) => {
            words.into_iter().map(|word| word.as_str().map(str::to_owned)).collect()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_survives_as_text() {
        let array_of = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        for list in [&["a"][..], &["a b", "c\"d'e\\f\n\u{e9}", ""], &[]] {
            let list = array_of(list);
            assert_eq!(words(&toml::Value::from(list.clone()).to_string()), Some(list));
        }
        for text in ["", "a b", "\"a\"", "[1]", "[\"a\", 1]", "[\"a\"]\nother = 1", "[\"a\""] {
            assert_eq!(words(text), None, "{text:?}");
        }
    }
}
