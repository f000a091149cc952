//! Fails on an upward dependency, one between two rooms of one row, or a leak of `unsafe` or libc.

use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};
use tombolo_architecture::{DOORS, room_of, sources};

/// Maximum length of a readable file, in lines.
const FILE_LINES_MAX: usize = 700;

fn metadata() -> Metadata {
    MetadataCommand::new().no_deps().exec().expect("cargo metadata")
}

fn folder(metadata: &Metadata, package: &Package) -> PathBuf {
    let manifest =
        package.manifest_path.strip_prefix(&metadata.workspace_root).expect("a crate outside the workspace");
    manifest.parent().expect("a manifest lies in a folder").as_std_path().to_owned()
}

#[test]
fn dependencies_point_down_and_never_within_a_row() {
    let metadata = metadata();
    let mut faults = Vec::new();
    for package in metadata.workspace_packages() {
        let from_folder = folder(&metadata, package);
        let Some(from) = room_of(&from_folder) else {
            faults.push(format!("{} is in no room", from_folder.display()));
            continue;
        };
        for dependency in &package.dependencies {
            let Some(path) = &dependency.path else { continue };
            let to_folder =
                path.strip_prefix(&metadata.workspace_root).expect("a dependency outside the workspace");
            let Some(to) = room_of(to_folder.as_std_path()) else { continue };
            let for_tests_only = dependency.kind == DependencyKind::Development;
            // Tests of a front end or a layer need a back end, and a layer that makes it slow or faulty; and
            // a room may test its optional parts.
            let own = to_folder.as_std_path() == from_folder;
            let is_for_tests = to.folder.starts_with("tests") || ["back", "layer"].contains(&to.folder);
            if for_tests_only && (own || is_for_tests) {
                continue;
            }
            let door = DOORS.iter().any(|&(from, to)| from_folder == Path::new(from) && to_folder == to);
            if to.row >= from.row && from.folder != "tests" && !door {
                faults.push(format!("{} must not depend on {to_folder}", from_folder.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn unsafe_and_the_system_stay_in_their_rooms() {
    let metadata = metadata();
    let mut faults = Vec::new();
    for package in metadata.workspace_packages() {
        let crate_folder = folder(&metadata, package);
        let Some(room) = room_of(&crate_folder) else { continue };
        // Shipped code only: a test may, say, count allocations, which requires an `unsafe impl`.
        let shipped = metadata.workspace_root.as_std_path().join(&crate_folder).join("src");
        for path in sources(&shipped).expect("readable sources") {
            let text = std::fs::read_to_string(&path).expect("readable source");
            for word in forbidden_words(room.may_be_unsafe, room.may_name_the_system) {
                for (number, line) in text.lines().enumerate() {
                    if code_of(line).contains(word) {
                        faults.push(format!(
                            "{}:{}: `{word}` is not allowed in this crate",
                            path.display(),
                            number + 1
                        ));
                    }
                }
            }
        }
        if !room.may_be_unsafe {
            faults.extend(roots_without_forbid(package));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn files_stay_short_enough_to_read() {
    let metadata = metadata();
    let mut faults = Vec::new();
    for path in sources(metadata.workspace_root.as_std_path()).expect("readable sources") {
        let lines = std::fs::read_to_string(&path).expect("readable source").lines().count();
        if lines > FILE_LINES_MAX && !path.components().any(|part| part.as_os_str() == ".cache") {
            faults.push(format!("{}: {lines} lines; split it by meaning", path.display()));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn sources_are_compiled_for_tests_where_they_have_some() {
    let metadata = metadata();
    let mut faults = Vec::new();
    for package in metadata.workspace_packages() {
        let shipped = metadata.workspace_root.as_std_path().join(folder(&metadata, package)).join("src");
        let mut texts = sources(&shipped).expect("readable sources").into_iter().map(std::fs::read_to_string);
        // A macro that declares tests has none itself.
        let is_test = |after: &str| !after.trim_start().starts_with("fn $");
        let has_tests =
            texts.any(|text| text.expect("readable source").split("#[test]").skip(1).any(is_test));
        for target in package.targets.iter().filter(|target| target.src_path.starts_with(&shipped)) {
            if target.test != has_tests {
                faults.push(format!("{}, {}: write `test = {has_tests}`", package.name, target.name));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn tests_are_skipped_by_the_one_macro() {
    let metadata = metadata();
    let mut faults = Vec::new();
    for path in sources(metadata.workspace_root.as_std_path()).expect("readable sources") {
        let is_macro = ["tests/skip", "tests/architecture"]
            .iter()
            .any(|folder| path.starts_with(metadata.workspace_root.as_std_path().join(folder)));
        if is_macro {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("readable source");
        for (number, line) in text.lines().enumerate() {
            if line.contains("\"skipped: ") || line.contains("TOMBOLO_ALLOW_SKIP") {
                faults.push(format!("{}:{}: use tombolo_skip::skip!", path.display(), number + 1));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn forbidden_words(may_be_unsafe: bool, may_name_the_system: bool) -> Vec<&'static str> {
    let mut words = Vec::new();
    if !may_be_unsafe {
        words.extend(["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"]);
    }
    if !may_name_the_system {
        words.extend(["libc::", "rustix::", "RawFd", "as_raw_fd", "from_raw_fd", "*const ", "*mut "]);
    }
    words
}

/// Returns the part of a line before a comment.
fn code_of(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

fn roots_without_forbid(package: &Package) -> Vec<String> {
    let is_root = |target: &&cargo_metadata::Target| target.is_lib() || target.is_bin();
    let lacks =
        |path: &Path| !std::fs::read_to_string(path).unwrap_or_default().contains("#![forbid(unsafe_code)]");
    package
        .targets
        .iter()
        .filter(is_root)
        .filter(|target| lacks(target.src_path.as_std_path()))
        .map(|target| format!("{} lacks #![forbid(unsafe_code)]", target.src_path))
        .collect()
}
