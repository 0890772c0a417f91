//! `outbox-relay completions`: shell completion.

use super::exit::Failed;
use super::terminal::output;
use clap::Args;
use clap_complete::{Shell, generate};

/// Print a shell completion script.
#[derive(Debug, Args)]
#[command(after_help = "\
The packages install the scripts for bash, fish and zsh. Use this command if you installed the relay in another way.

Examples:
  outbox-relay completions bash > /etc/bash_completion.d/outbox-relay
  outbox-relay completions fish > ~/.config/fish/completions/outbox-relay.fish
  outbox-relay completions zsh > /usr/local/share/zsh/site-functions/_outbox-relay

Exit codes: 0 success, 1 cannot write to stdout, 2 usage error.")]
pub(crate) struct Completions {
    /// Shell to generate the script for.
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self) -> Result<(), Failed> {
        let script = script(self.shell, &mut super::command(), "outbox-relay");
        output::raw(script.as_bytes()).map(|_| ())
    }
}

/// The completion script of a program with this command line and name.
pub fn script(shell: Shell, command: &mut clap::Command, name: &str) -> String {
    let mut script = Vec::new();
    generate(shell, command, name, &mut script);
    // Works around clap_complete 4.6.11, which writes the hyphen of the name in two ways, so that bash finds no subcommand.
    let (written, correct) = (name.replace('-', "__subcmd__"), name.replace('-', "__"));
    String::from_utf8_lossy(&script).replace(&written, &correct)
}
