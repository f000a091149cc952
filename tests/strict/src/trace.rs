//! Parser for the output of `strace -f -y`: one event per line, of all processes of a job.

use std::collections::HashMap;

/// A process or thread, by its number in the trace.
pub type Pid = u32;

/// One event of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A system call that has returned.
    Call(Call),
    /// The end of the process.
    Exit,
}

/// A system call that has returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its name.
    pub name: String,
    /// Its arguments, as strace writes them.
    pub args: Vec<String>,
    /// Its return value, or the name of its error.
    pub result: Result<i64, String>,
    /// Number of entries in a listing, which strace notes next to the buffer.
    pub entries: u64,
}

/// Returns the events of a trace in the order in which they ended.
pub fn events(text: &str) -> Vec<(Pid, Event)> {
    let mut begun: HashMap<Pid, String> = HashMap::new();
    let mut events = Vec::new();
    for line in text.lines() {
        let Some((pid, rest)) = line.split_once(' ') else { continue };
        let Ok(pid) = pid.parse() else { continue };
        let rest = rest.trim_start();
        if rest.starts_with("+++") {
            events.push((pid, Event::Exit));
        } else if let Some(beginning) = rest.strip_suffix("<unfinished ...>") {
            begun.insert(pid, beginning.trim_end().to_owned());
        } else if let Some((_, end)) =
            rest.strip_prefix("<... ").and_then(|rest| rest.split_once(" resumed>"))
        {
            let whole = begun.remove(&pid).unwrap_or_default() + end;
            events.extend(call(&whole).map(|call| (pid, Event::Call(call))));
        } else {
            events.extend(call(rest).map(|call| (pid, Event::Call(call))));
        }
    }
    events
}

/// Parses `name(arguments) = result`; `None` for signals and for calls that never returned.
fn call(text: &str) -> Option<Call> {
    let (name, rest) = text.split_once('(')?;
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        return None;
    }
    let (args, end) = arguments(rest)?;
    let result = end.trim_start().strip_prefix('=')?.trim_start();
    let mut words = result.split(|letter: char| letter.is_whitespace() || letter == '<');
    let result = match words.next()? {
        "-1" => Err(words.next().unwrap_or_default().to_owned()),
        "?" => return None,
        number => Ok(integer(number)?),
    };
    let entries = rest.split_once("/* ").and_then(|(_, note)| note.split_once(" entries"));
    let entries = entries.and_then(|(count, _)| count.parse().ok()).unwrap_or_default();
    Some(Call { name: name.to_owned(), args, result, entries })
}

/// Parses a decimal, hexadecimal or octal number.
pub fn integer(text: &str) -> Option<i64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok().map(u64::cast_signed),
        None => text.parse().ok(),
    }
}

/// Returns the arguments up to the closing parenthesis, and the remaining text.
fn arguments(text: &str) -> Option<(Vec<String>, &str)> {
    let mut args = vec![String::new()];
    let mut depth = 0;
    let mut quoted = false;
    let mut escaped = false;
    let mut in_path = false;
    let mut before = ' ';
    for (at, letter) in text.char_indices() {
        let plain = !quoted && !in_path;
        match letter {
            '"' if !escaped && !in_path => quoted = !quoted,
            // A descriptor's path directly follows its number.
            '<' if plain && (before.is_ascii_digit() || before == 'D') => in_path = true,
            '>' if in_path => in_path = false,
            '(' | '[' | '{' if plain => depth += 1,
            ')' if plain && depth == 0 => {
                args.retain(|arg| !arg.is_empty());
                return Some((args, text.get(at + 1..)?));
            }
            ')' | ']' | '}' if plain => depth -= 1,
            ',' if plain && depth == 0 => {
                args.push(String::new());
                before = letter;
                continue;
            }
            _ => {}
        }
        escaped = quoted && letter == '\\' && !escaped;
        before = letter;
        let arg = args.last_mut()?;
        if !(letter == ' ' && arg.is_empty()) {
            arg.push(letter);
        }
    }
    None
}

/// Returns the text of a quoted argument.
pub fn unquoted(arg: &str) -> Option<String> {
    let inner = arg.strip_prefix('"')?.strip_suffix('"')?;
    let mut text = String::new();
    let mut letters = inner.chars();
    while let Some(letter) = letters.next() {
        text.push(if letter == '\\' { letters.next()? } else { letter });
    }
    Some(text)
}

/// Returns a descriptor's number, and its path if any: `3</tree/file>`.
pub fn descriptor(arg: &str) -> Option<(i32, Option<&str>)> {
    let (number, path) = match arg.split_once('<') {
        Some((number, path)) => (number, path.strip_suffix('>')),
        None => (arg, None),
    };
    Some((number.parse().ok()?, path.filter(|path| path.starts_with('/'))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(text: &str) -> Call {
        match events(text).as_slice() {
            [(7, Event::Call(call))] => call.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_call_is_taken_apart() {
        let call = only(r#"7 openat(AT_FDCWD</tree>, "a, (b)\"", O_RDWR|O_CREAT, 0644) = 3</tree/a, (b)">"#);
        assert_eq!(call.args, ["AT_FDCWD</tree>", r#""a, (b)\"""#, "O_RDWR|O_CREAT", "0644"]);
        assert_eq!((unquoted(&call.args[1]).unwrap(), call.result), ("a, (b)\"".into(), Ok(3)));
        let call = only("7 read(3</tree/x,y>, \"\"..., 4096) = 17");
        assert_eq!((descriptor(&call.args[0]), call.result), (Some((3, Some("/tree/x,y"))), Ok(17)));
        let call = only("7 access(\"/x\", R_OK) = -1 ENOENT (No such file or directory)");
        assert_eq!(call.result, Err("ENOENT".into()));
        assert_eq!(only("7 getdents64(3</tree>, 0x55d0 /* 23 entries */, 32768) = 712").entries, 23);
    }

    #[test]
    fn a_call_that_others_interrupted_is_put_together() {
        let text = "7 read(0, <unfinished ...>\n8 close(3) = 0\n7 <... read resumed>\"\", 10) = 0\n8 +++ exited with 0 +++\n";
        let found = events(text);
        let names: Vec<_> = found
            .iter()
            .map(|(pid, event)| match event {
                Event::Call(call) => (*pid, call.name.as_str(), call.args.len()),
                Event::Exit => (*pid, "exit", 0),
            })
            .collect();
        assert_eq!(names, [(8, "close", 1), (7, "read", 3), (8, "exit", 0)]);
    }

    #[test]
    fn signals_and_calls_without_end_are_no_calls() {
        let text = "7 --- SIGCHLD {si_signo=SIGCHLD, si_code=CLD_EXITED} ---\n7 exit_group(0) = ?\n";
        assert_eq!(events(text), []);
    }
}
