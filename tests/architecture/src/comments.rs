//! Comments of a source file, and the items that they document.

/// A block of comment lines of one kind.
#[derive(Debug)]
pub struct Comment {
    /// Number of the first line, from 1.
    pub line: usize,
    /// Text without markers, on one line.
    pub text: String,
    /// Documented item.
    pub documents: Documents,
}

/// The kind of item that a comment documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Documents {
    /// The file or module that contains the comment (`//!`).
    Enclosing,
    /// A function.
    Function,
    /// A type, trait, constant or module.
    Type,
    /// A field, a variant or another item.
    Other,
    /// Nothing: an ordinary comment.
    Nothing,
}

impl Comment {
    /// Returns the first word without its punctuation.
    pub fn first_word(&self) -> &str {
        let word = self.text.split(' ').next().unwrap_or_default();
        word.trim_end_matches(['.', ',', ':', ';'])
    }
}

/// Returns the comments of a source text, without those behind code.
pub fn comments_of(source: &str) -> Vec<Comment> {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let mut comments = Vec::new();
    let mut next = 0;
    while let Some(first) = lines.get(next) {
        let line = next + 1;
        let Some(marker) = marker_of(first) else {
            next = line;
            continue;
        };
        let block: Vec<&str> =
            lines[next..].iter().copied().take_while(|it| marker_of(it) == Some(marker)).collect();
        next += block.len();
        let text: Vec<&str> = block.iter().map(|it| it[marker.len()..].trim()).collect();
        let documents = match marker {
            "//!" => Documents::Enclosing,
            "///" => item_kind(&lines[next..]),
            _ => Documents::Nothing,
        };
        comments.push(Comment { line, text: text.join(" ").trim().to_owned(), documents });
    }
    comments.retain(|comment| !comment.text.is_empty());
    comments
}

fn marker_of(line: &str) -> Option<&'static str> {
    ["//!", "///", "//"].into_iter().find(|marker| line.starts_with(marker))
}

/// Returns the kind of the first item of these lines.
fn item_kind(lines: &[&str]) -> Documents {
    let is_attribute = |line: &&&str| line.starts_with("#[") || line.ends_with(")]") || line.is_empty();
    let Some(item) = lines.iter().find(|line| !is_attribute(line)) else { return Documents::Other };
    let qualifiers = ["pub", "pub(crate)", "pub(super)", "async", "unsafe", "extern", "\"C\"", "default"];
    let mut words = item.split(' ').filter(|word| !qualifiers.contains(word));
    let documents = |word: &str| match word {
        "fn" => Documents::Function,
        "struct" | "enum" | "trait" | "type" | "mod" | "static" | "union" => Documents::Type,
        _ => Documents::Other,
    };
    match words.next() {
        Some("const") if words.next() == Some("fn") => Documents::Function,
        Some("const") => Documents::Type,
        Some(word) => documents(word),
        None => Documents::Other,
    }
}
