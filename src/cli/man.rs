//! `inplace man FOLDER`: writes the manual pages of the command line, one for each command. It is hidden, because packages
//! contain the pages. Talks to no server.

use std::path::PathBuf;

use clap::Command;

use crate::cli::exit::Exit;
use crate::cli::output::message;

/// Write the manual pages of all commands into a folder
#[derive(Debug, clap::Args)]
pub struct ManCommand {
    /// The folder, which must exist
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

impl ManCommand {
    /// Writes the pages of `command`, the whole command line. Fails if a page cannot be written.
    pub fn run(&self, command: Command) -> Exit {
        match clap_mangen::generate_to(with_examples(command), &self.folder) {
            Ok(()) => Exit::Done,
            Err(error) => {
                message(&format!("{}: {error}", self.folder.display()));
                Exit::Failed
            }
        }
    }
}

/// Moves the examples, which the help shows before the usage, to the end: a page has no other place for them.
fn with_examples(command: Command) -> Command {
    let texts = [command.get_before_help(), command.get_after_help()];
    let texts: Vec<_> = texts.into_iter().flatten().map(ToString::to_string).collect();
    let command = if texts.is_empty() { command } else { command.after_help(texts.join("\n\n")) };
    command.mut_subcommands(with_examples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_with_its_examples() {
        let folder = tempfile::tempdir().unwrap();
        let below = Command::new("below").before_help("Examples:\n  tool below x").after_help("The end");
        let hidden = Command::new("hidden").hide(true);
        let man = ManCommand { folder: folder.path().to_owned() };
        let command = Command::new("tool").subcommand(below).subcommand(hidden);
        assert_eq!(man.run(command.clone()), Exit::Done);
        let mut pages: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|page| page.unwrap().file_name()).collect();
        pages.sort();
        assert_eq!(pages, ["tool-below.1", "tool.1"]);
        let page = std::fs::read_to_string(folder.path().join("tool-below.1")).unwrap();
        let (example, end) = (page.find("tool below x").unwrap(), page.find("The end").unwrap());
        assert!(example < end, "{page}");

        let man = ManCommand { folder: folder.path().join("absent") };
        assert_eq!(man.run(command), Exit::Failed);
    }
}
