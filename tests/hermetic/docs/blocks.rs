//! The code blocks and code spans of a page, and the words of the commands in them. Must not know which commands exist.

/// The indentation of a code block.
const INDENT: &str = "    ";

/// Lines of a page that are indented as code, without a blank line between them.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// The nearest heading above.
    pub(crate) heading: String,
    /// The number of the first line, from one.
    pub(crate) line: usize,
    pub(crate) lines: Vec<String>,
}

impl Block {
    /// The commands of the block, without comments. If lines begin with the prompt `$ `, the others are output.
    pub(crate) fn commands(&self) -> Vec<String> {
        let prompted = self.lines.iter().any(|line| line.starts_with("$ "));
        let commands = self.lines.iter().filter(|line| !prompted || line.starts_with("$ "));
        commands.map(|line| without_comment(line.trim_start_matches("$ "))).collect()
    }
}

/// The code blocks of a page, in order.
pub(crate) fn blocks(text: &str) -> Vec<Block> {
    let (mut blocks, mut heading, mut above) = (Vec::<Block>::new(), "", "");
    for (index, line) in text.lines().enumerate() {
        let continues = above.starts_with(INDENT) && !blocks.is_empty();
        match line.strip_prefix(INDENT) {
            Some(code) if continues => {
                if let Some(block) = blocks.last_mut() {
                    block.lines.push(code.to_owned());
                }
            }
            Some(code) if above.is_empty() => {
                let lines = vec![code.to_owned()];
                blocks.push(Block { heading: heading.to_owned(), line: index + 1, lines });
            }
            _ if line.starts_with('#') => heading = line.trim_start_matches('#').trim(),
            _ => {}
        }
        above = line;
    }
    blocks
}

/// The text between single backquotes outside of code blocks.
pub(crate) fn spans(text: &str) -> Vec<String> {
    let prose = text.lines().filter(|line| !line.starts_with(INDENT));
    prose.flat_map(|line| line.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

/// The commands of a line, as words: what is between the operators of the shell.
pub(crate) fn words(line: &str) -> Vec<Vec<String>> {
    let (mut commands, mut command, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let mut quote = None;
    for c in line.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, ' ') => command.extend(word.take()),
            (None, '|' | '&' | ';' | '(' | ')') => {
                command.extend(word.take());
                commands.push(std::mem::take(&mut command));
            }
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    command.extend(word);
    commands.push(command);
    commands.retain(|command: &Vec<String>| !command.is_empty());
    commands
}

/// A comment begins with `#` after a blank, outside of quotes.
fn without_comment(line: &str) -> String {
    let (mut quote, mut before) = (None, ' ');
    for (index, c) in line.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None, '#') if before == ' ' => return line[..index].trim_end().to_owned(),
            _ => {}
        }
        before = c;
    }
    line.trim_end().to_owned()
}
