//! Messages in docs/troubleshooting.md exist in the program.

use std::fs;
use std::path::Path;

/// Sources of messages.
const SOURCES: [&str; 6] = ["cli/src", "host", "front", "layer", "back", "client"];

#[test]
fn each_message_of_the_page_stands_in_the_source() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
    let page = fs::read_to_string(repository.join("docs/troubleshooting.md")).expect("the page");
    let mut sources = Vec::new();
    for dir in SOURCES {
        read_sources(&repository.join(dir), &mut sources);
    }
    let messages: Vec<_> =
        page.lines().filter_map(|row| row.strip_prefix("| `")?.split('`').next()).collect();
    assert!(messages.len() > 20, "{messages:?}");
    for message in messages {
        // Variable parts are arguments in the source.
        let fixed: Vec<_> = message.split('…').map(str::trim).filter(|part| !part.is_empty()).collect();
        let found = sources.iter().any(|source| fixed.iter().all(|part| source.contains(part)));
        assert!(found, "no source says: {message}");
    }
}

/// Reads all Rust files, joining continued strings.
fn read_sources(dir: &Path, sources: &mut Vec<String>) {
    for entry in fs::read_dir(dir).expect("list") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            read_sources(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("read");
            let parts = text.split("\\\n").map(str::trim_start);
            sources.push(parts.collect());
        }
    }
}
