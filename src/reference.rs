//! The test of the generated pages about the command line, `docs/reference/cli.md` and `docs/reference/flags.md`. It is in
//! the program, because only the program has the whole command line. Must not be part of a build.

use std::fmt::Write as _;
use std::mem::discriminant;

use clap::builder::StyledStr;
use clap::{Arg, ArgAction, Command};

use inplace::cli::{examples, exit};

use crate::command;

#[path = "../tests/hermetic/reference/page.rs"]
mod page;

/// The roles, which have a page of their own.
const ROLES: [&str; 2] = ["agent", "controller"];

#[test]
fn reference_of_the_command_line() {
    let root = built();
    let mut text = String::from(
        "The commands, their flags and the defaults, as in `inplace COMMAND --help`. The flags of the two roles `agent` and \
         `controller` are in [flags](flags.md).\n\n",
    );
    let _ = write!(text, "## Flags of every command\n\n{}", flags(&root, None, Part::Own));
    let connected = root.find_subcommand("status").unwrap();
    let _ = write!(
        text,
        "\n## Flags of the commands with an API server\n\n`-h` shows the most important of them, `--help` all. The names \
         are those of kubectl.\n\n{}",
        flags(connected, Some(&root), Part::Cluster)
    );
    for command in root.get_subcommands().filter(|command| !ROLES.contains(&command.get_name())) {
        describe(command, &root, &mut text);
    }
    let codes = exit::HELP.lines().skip(1).filter_map(|line| line.trim().split_once("  "));
    let codes: Vec<_> = codes.map(|(code, meaning)| vec![code.to_owned(), page::cell(meaning)]).collect();
    let _ = write!(text, "\n## Exit codes\n\n{}", page::table(&["code", "meaning"], &codes));
    page::check("cli.md", "Commands", &text);
}

#[test]
fn reference_of_the_flags_of_the_roles() {
    let root = built();
    let mut text = String::from("The flags of the two roles. Both also have the ");
    text.push_str("[flags of every command](cli.md#flags-of-every-command).\n");
    for name in ROLES {
        let role = root.find_subcommand(name).unwrap();
        let _ = write!(text, "\n## Flags of the {name}\n\n{}\n", about(role));
        text.push_str(&flags(role, Some(&root), Part::All));
    }
    page::check("flags.md", "Flags of the agent and the controller", &text);
}

/// The command line, complete with what clap adds to it.
fn built() -> Command {
    let mut root = command(None);
    root.build();
    root
}

/// A command with its flags, and then the commands below it.
fn describe(command: &Command, parent: &Command, text: &mut String) {
    if command.is_hide_set() || command.get_name() == "help" {
        return;
    }
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").lines().map(|line| format!("    {}\n", line.trim()));
    let _ = write!(
        text,
        "\n## `{}`\n\n{}\n{}",
        command.get_bin_name().unwrap_or_default(),
        about(command),
        usage.collect::<String>()
    );
    let examples =
        examples::of(path(command)).iter().map(|(what, line)| format!("    # {what}\n    {line}\n"));
    let examples: String = examples.collect::<Vec<_>>().join("\n");
    if !examples.is_empty() {
        let _ = write!(text, "\nExamples:\n\n{examples}");
    }
    let own = flags(command, Some(parent), Part::Own);
    if !own.is_empty() {
        let _ = write!(text, "\n{own}");
    }
    if command.get_arguments().any(is_of_cluster) {
        text.push_str("\nAnd the [flags of the commands with an API server](#flags-of-the-commands-with-an-api-server).\n");
    }
    for below in command.get_subcommands() {
        describe(below, command, text);
    }
}

/// The help of a command, as one paragraph for each of its own.
fn about(command: &Command) -> String {
    let about = command.get_long_about().or(command.get_about()).map(StyledStr::to_string);
    let about = about.unwrap_or_default();
    about.split("\n\n").map(|part| format!("{}\n", page::cell(part))).collect::<Vec<_>>().join("\n")
}

/// Which flags of a command a table has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Those about the connection to the API server.
    Cluster,
    /// The others.
    Own,
    All,
}

fn is_of_cluster(arg: &Arg) -> bool {
    arg.get_help_heading() == Some("Cluster")
}

/// The names of the subcommands that lead to the command, without the program's.
fn path(command: &Command) -> &str {
    command.get_bin_name().and_then(|name| name.strip_prefix("inplace")).unwrap_or_default().trim()
}

/// The table of arguments. A flag of every command below `parent` is only in the table of `parent`.
fn flags(command: &Command, parent: Option<&Command>, part: Part) -> String {
    let own = |arg: &&Arg| {
        let same = |other: &Arg| other.is_global_set() && other.get_id() == arg.get_id();
        let is_above = parent.is_some_and(|parent| parent.get_arguments().any(same));
        let help = [ArgAction::Help, ArgAction::HelpShort, ArgAction::HelpLong, ArgAction::Version];
        let is_help = help.iter().any(|action| discriminant(action) == discriminant(arg.get_action()));
        let is_here = part == Part::All || is_of_cluster(arg) == (part == Part::Cluster);
        is_here && !(arg.is_hide_set() || is_above || parent.is_some() && is_help)
    };
    let rows: Vec<_> = command.get_arguments().filter(own).map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    page::table(&["argument", "default", "environment", "meaning"], &rows)
}

fn row(arg: &Arg) -> Vec<String> {
    let code = |text: &str| if text.is_empty() { String::new() } else { format!("`{}`", page::cell(text)) };
    let takes = arg.get_action().takes_values();
    let names = arg.get_value_names().unwrap_or_default().iter().map(ToString::to_string);
    let value = if takes { names.collect::<Vec<_>>().join(" ") } else { String::new() };
    let mut spellings = Vec::new();
    spellings.extend(arg.get_short().map(|short| format!("-{short}")));
    spellings.extend(arg.get_long().map(|long| format!("--{long}")));
    let optional = takes && arg.get_num_args().is_some_and(|count| count.min_values() == 0);
    let name = match (spellings.is_empty(), value.is_empty()) {
        (true, _) => code(&value),
        (false, true) => code(&spellings.join(", ")),
        (false, false) if optional => code(&format!("{}[={value}]", spellings.join(", "))),
        (false, false) => code(&format!("{} {value}", spellings.join(", "))),
    };
    let many = arg.get_num_args().is_some_and(|count| count.max_values() > 1);
    let repeated =
        if many || matches!(arg.get_action(), ArgAction::Append) { ", can be repeated" } else { "" };
    let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    let default = match (arg.is_required_set(), takes) {
        (true, _) => "required".to_owned(),
        (false, true) => code(&defaults.join(",")),
        (false, false) => String::new(),
    };
    let env = arg.get_env().map(|name| code(&name.to_string_lossy())).unwrap_or_default();
    let help = arg.get_long_help().or(arg.get_help()).map(StyledStr::to_string).unwrap_or_default();
    // A default that depends on other settings is a part of the help.
    let (help, said) = help.trim_end_matches(']').split_once(" [default: ").unwrap_or((&help, ""));
    let default = if said.is_empty() { default } else { page::cell(said) };
    let mut help = page::cell(help);
    let values = arg.get_possible_values();
    let values = values.iter().filter(|value| takes && !value.is_hide_set()).map(|value| {
        let meaning = value.get_help().map(|help| format!(" ({})", page::cell(&help.to_string())));
        format!("`{}`{}", value.get_name(), meaning.unwrap_or_default())
    });
    let values = values.collect::<Vec<_>>().join(", ");
    if !values.is_empty() {
        let _ = write!(help, ". Values: {values}");
    }
    vec![format!("{name}{repeated}"), default, env, help]
}

/// The commands that do something, with the names that lead to them.
fn leaves<'a>(command: &'a Command, found: &mut Vec<&'a Command>) {
    for below in command.get_subcommands().filter(|one| !one.is_hide_set() && one.get_name() != "help") {
        if below.has_subcommands() { leaves(below, found) } else { found.push(below) }
    }
}

/// The words of a line, as a shell splits it.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for c in line.split(" | ").next().unwrap_or_default().chars() {
        match c {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(std::mem::take(&mut word)),
            c => word.push(c),
        }
    }
    words.push(word);
    words
}

#[test]
fn every_command_has_examples_and_they_parse() {
    let root = built();
    let mut found = Vec::new();
    leaves(&root, &mut found);
    assert!(found.len() > 20, "{}", found.len());
    for leaf in found {
        let path = path(leaf);
        assert!(!examples::of(path).is_empty(), "{path} has no example");
        for (what, line) in examples::of(path) {
            assert!(
                line.starts_with(&format!("inplace {path} ")) || *line == format!("inplace {path}"),
                "{line}"
            );
            let parsed = command(None).try_get_matches_from(words(line));
            assert!(parsed.is_ok(), "{what}: {line}: {}", parsed.unwrap_err());
        }
        let help = leaf.clone().render_long_help().to_string();
        let (example, usage) = (help.find("Examples:").unwrap(), help.find("Usage:").unwrap());
        assert!(example < usage, "{help}");
        assert!(!help.contains("7  an inplace agent"), "{path}: the exit codes are in one place");
    }
    assert!(root.clone().render_long_help().to_string().contains("7  an inplace agent"));
}

#[test]
fn the_plugin_says_its_name_in_the_examples() {
    let help = command(Some("/usr/bin/kubectl-inplace".into())).render_long_help().to_string();
    assert!(help.contains("  kubectl inplace status -A -w"), "{help}");
}

#[test]
fn the_help_has_the_colour_that_was_asked_for() {
    use clap::ColorChoice;
    for (line, choice) in [
        ("inplace --help", ColorChoice::Auto),
        ("inplace --color=never --help", ColorChoice::Never),
        ("inplace status --color always --help", ColorChoice::Always),
        ("inplace status -- --color=always", ColorChoice::Auto),
    ] {
        assert_eq!(crate::help_color(line.split(' ').map(Into::into)), choice, "{line}");
    }
}
