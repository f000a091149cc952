//! Fails on comments, names and columns that CONTRIBUTING.md rules out.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tombolo_architecture::{Comment, Documents, comments_of, sources, workspace_root};

/// Longest line with a comment, in columns.
const COLUMNS_MAX: usize = 110;

/// Longest name of a test, in words.
const TEST_NAME_WORDS_MAX: usize = 9;

/// Share of comments that may break a rule of the opening word, in a thousand.
const EXCEPTIONS_PER_MILLE: usize = 30;

/// Share of sentences that may open with one of [`OPENINGS`], in a thousand.
const OPENINGS_PER_MILLE: usize = 10;

/// Openings of sentences that hide the subject.
const OPENINGS: &[&str] =
    &["What ", "How ", "Those ", "So ", "One that ", "It is what ", "Tells what ", "Says how ", "Whether "];

/// Opening words of a type, a constant or a module that are no noun phrase.
const NO_NOUNS: &[&str] = &[
    "As", "At", "Because", "By", "For", "From", "Has", "How", "If", "In", "Is", "It", "Of", "On", "Once",
    "Only", "Says", "Since", "So", "Tells", "That", "Those", "To", "Until", "Was", "Were", "What", "When",
    "Where", "Whether", "Which", "While", "Who", "Whose", "With",
];

/// Words of a private sense, in names and in prose.
const METAPHORS: &[&str] = &["doubtful", "manners", "twins", "wishes", "young"];

fn all_sources() -> Vec<PathBuf> {
    let root = workspace_root();
    let downloads = root.join(".cache");
    let all = sources(&root).expect("readable sources");
    all.into_iter().filter(|path| !path.starts_with(&downloads)).collect()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the comments of all sources, with their places.
fn all_comments() -> Vec<(String, Comment)> {
    let files = all_sources();
    let place = |path: &Path, comment: &Comment| format!("{}:{}", path.display(), comment.line);
    let of = |path: &PathBuf| {
        let comments = comments_of(&read(path));
        comments.into_iter().map(|comment| (place(path, &comment), comment)).collect::<Vec<_>>()
    };
    files.iter().flat_map(of).collect()
}

/// Fails if more than `per_mille` of `all` are faults.
fn expect_few(faults: &[String], all: usize, per_mille: usize) {
    assert!(faults.len() * 1000 <= all * per_mille, "{} of {all}:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn function_comments_begin_with_a_verb() {
    let verbs: BTreeSet<&str> = include_str!("verbs.txt").split_whitespace().collect();
    assert!(verbs.len() <= 250, "{} verbs: use one of those that are listed", verbs.len());
    let comments = all_comments();
    let functions: Vec<_> = comments.iter().filter(|(_, it)| it.documents == Documents::Function).collect();
    let is_fault = |comment: &Comment| !verbs.contains(comment.first_word());
    let faults: Vec<_> = functions
        .iter()
        .filter(|(_, comment)| is_fault(comment))
        .map(|(place, comment)| format!("{place}: {}", comment.text))
        .collect();
    expect_few(&faults, functions.len(), EXCEPTIONS_PER_MILLE);
}

#[test]
fn type_comments_begin_with_a_noun() {
    let comments = all_comments();
    let nouns: Vec<_> = comments
        .iter()
        .filter(|(_, it)| matches!(it.documents, Documents::Type | Documents::Enclosing))
        .collect();
    let faults: Vec<_> = nouns
        .iter()
        .filter(|(_, comment)| NO_NOUNS.contains(&comment.first_word()))
        .map(|(place, comment)| format!("{place}: {}", comment.text))
        .collect();
    expect_few(&faults, nouns.len(), EXCEPTIONS_PER_MILLE);
}

#[test]
fn sentences_name_their_subject() {
    let comments = all_comments();
    let sentences: Vec<(&str, &str)> = comments
        .iter()
        .flat_map(|(place, comment)| comment.text.split(". ").map(move |sentence| (place.as_str(), sentence)))
        .collect();
    let hides = |sentence: &str| OPENINGS.iter().any(|opening| sentence.starts_with(opening));
    let faults: Vec<_> = sentences
        .iter()
        .filter(|(_, sentence)| hides(sentence))
        .map(|(place, sentence)| format!("{place}: {sentence}"))
        .collect();
    expect_few(&faults, sentences.len(), OPENINGS_PER_MILLE);
}

#[test]
fn words_have_the_sense_of_the_field() {
    let mut faults = Vec::new();
    for path in all_sources() {
        if path.ends_with(file!().rsplit('/').next().expect("a name")) {
            continue;
        }
        for (number, line) in read(&path).lines().enumerate() {
            let line = line.to_lowercase();
            let mut words = line.split(|c: char| !c.is_alphabetic());
            if let Some(word) = words.find(|word| METAPHORS.contains(word)) {
                faults.push(format!("{}:{}: {word}", path.display(), number + 1));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn comments_fit_their_columns() {
    let mut faults = Vec::new();
    for path in all_sources() {
        for (number, line) in read(&path).lines().enumerate() {
            // A URL cannot be broken.
            if line.trim_start().starts_with("//")
                && line.chars().count() > COLUMNS_MAX
                && !line.contains("://")
            {
                faults.push(format!("{}:{}: {} columns", path.display(), number + 1, line.chars().count()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn test_names_are_short() {
    let mut faults = Vec::new();
    for path in all_sources() {
        let text = read(&path);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for pair in lines.windows(2).filter(|pair| pair[0] == "#[test]") {
            let Some(name) = pair[1].split("fn ").nth(1).and_then(|after| after.split('(').next()) else {
                continue;
            };
            let hides =
                ["what_", "whether_", "how_", "one_that_", "those_"].iter().any(|it| name.starts_with(it));
            if hides || name.split('_').count() > TEST_NAME_WORDS_MAX {
                faults.push(format!("{}: {name}", path.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{} names:\n{}", faults.len(), faults.join("\n"));
}
