//! Fails on a claim whose test does not exist, and on a link that leads nowhere.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tombolo_architecture::{sources, workspace_root};

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_test_that_a_document_names_exists() {
    let root = workspace_root();
    let defined: BTreeSet<String> = sources(&root)
        .expect("readable sources")
        .iter()
        .filter(|path| !path.starts_with(root.join(".cache")))
        .flat_map(|path| read(path).lines().filter_map(function_name).collect::<Vec<_>>())
        .collect();
    let folder = root.join("docs/semantics");
    let pages = documents(&root).into_iter().filter(|document| document.starts_with(&folder));
    let semantics: String = pages.map(|page| read(&page)).collect();
    let named: Vec<&str> = code_spans(&semantics).filter(|span| is_test_name(span)).collect();
    assert!(named.len() > 40, "the semantics name only {} tests", named.len());
    let missing: Vec<&&str> = named.iter().filter(|name| !defined.contains(**name)).collect();
    assert!(missing.is_empty(), "tests named in docs/semantics that do not exist: {missing:?}");
    // Elsewhere an arrow stands before the tests that show what was said; other code may have such names too.
    let security = read(&root.join("docs/security.md"));
    let shown = security.split('→').skip(1).filter_map(|after| after.split("\n\n").next());
    let named: Vec<&str> = shown.flat_map(code_spans).filter(|span| is_test_name(span)).collect();
    assert!(named.len() > 4, "docs/security.md names only {} tests", named.len());
    let missing: Vec<&&str> = named.iter().filter(|name| !defined.contains(**name)).collect();
    assert!(missing.is_empty(), "tests named in docs/security.md that do not exist: {missing:?}");
}

#[test]
fn every_link_between_documents_leads_somewhere() {
    let root = workspace_root();
    let mut broken = Vec::new();
    for document in documents(&root) {
        let folder = document.parent().expect("a document lies in a folder");
        for target in link_targets(&read(&document)) {
            if !folder.join(&target).exists() {
                broken.push(format!("{}: {target}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

fn documents(root: &Path) -> Vec<PathBuf> {
    let is_document = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "md");
    let within = |folder: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).expect("a readable folder");
        entries.map(|entry| entry.expect("a readable entry").path()).collect()
    };
    let docs = root.join("docs");
    let folders = within(&docs).into_iter().filter(|path| path.is_dir());
    let folders = folders.chain([root.to_owned(), docs.clone()]);
    let mut documents: Vec<_> = folders.flat_map(|folder| within(&folder)).filter(is_document).collect();
    documents.sort();
    documents
}

/// Targets of links to files of this tree, without their fragment.
fn link_targets(text: &str) -> Vec<String> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .filter(|target| !target.contains("://") && !target.starts_with('#'))
        .filter_map(|target| target.split('#').next())
        .map(str::to_owned)
        .collect()
}

/// Returns the name of the function that a line defines, or of the test for which it calls a macro.
fn function_name(line: &str) -> Option<String> {
    let line = line.trim_start();
    let name = line.strip_prefix("on_each!(").or_else(|| line.split("fn ").nth(1))?;
    Some(name.split(|c: char| !c.is_alphanumeric() && c != '_').next()?.to_owned())
}

fn code_spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Tests are named by sentences: at least three words.
fn is_test_name(span: &str) -> bool {
    span.matches('_').count() >= 2 && span.chars().all(|c| c.is_lowercase() || c.is_numeric() || c == '_')
        || span == "case_matters"
}
