//! Path resolution as in path_resolution(7), within the tree.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};

use crate::common::local;
use libtombolo::{Last, Tree, block_on};
use proptest::prelude::*;
use tempfile::TempDir;
use tombolo_core::Error;
use tombolo_core::fs::FileType;

fn find(tree: &Tree, path: &str, last: Last) -> Result<u64, Error> {
    block_on(async { Ok(tree.find(path.as_bytes(), last).await?.attr_now().resolve().await?.fileid) })
}

/// Creates `a/b/file`, `a/link -> b`, `up -> a/..`, `loop -> loop`, `gone -> nowhere`, `top -> /a`.
fn plant() -> TempDir {
    let dir = TempDir::new().unwrap();
    fs::create_dir_all(dir.path().join("a/b")).unwrap();
    fs::write(dir.path().join("a/b/file"), "x").unwrap();
    let links = [("b", "a/link"), ("a/..", "up"), ("loop", "loop"), ("nowhere", "gone"), ("/a", "top")];
    for (target, link) in links {
        symlink(target, dir.path().join(link)).unwrap();
    }
    dir
}

#[test]
fn root_is_its_own_parent_and_confines_links() {
    let dir = plant();
    let tree = local(dir.path());
    let inode = |path: &str| fs::metadata(dir.path().join(path)).unwrap().ino();
    for (path, same) in
        [("..", "."), ("../../a", "a"), ("top/b/file", "a/b/file"), ("top/../..", "."), ("/", ".")]
    {
        assert_eq!(find(&tree, path, Last::Follow).unwrap(), inode(same), "{path}");
    }
    assert!(matches!(find(&tree, "loop", Last::Follow), Err(Error::SymlinkLoop)));
    assert!(find(&tree, "loop", Last::Keep).is_ok());
    assert!(matches!(find(&tree, "loop/", Last::Keep), Err(Error::SymlinkLoop)));
    assert!(matches!(find(&tree, "gone", Last::Follow), Err(Error::NotFound)));
    assert!(matches!(find(&tree, "a/b/file/", Last::Follow), Err(Error::NotDirectory)));
    assert!(matches!(find(&tree, "a/b/file/..", Last::Follow), Err(Error::NotDirectory)));
}

#[test]
fn forty_links_are_followed_and_not_one_more() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("0"), "x").unwrap();
    for number in 1..=41 {
        symlink(format!("{}", number - 1), dir.path().join(format!("{number}"))).unwrap();
    }
    let tree = local(dir.path());
    assert!(find(&tree, "40", Last::Follow).is_ok());
    assert!(matches!(find(&tree, "41", Last::Follow), Err(Error::SymlinkLoop)));
    assert!(find(&tree, "41", Last::Keep).is_ok());
}

#[test]
fn find_parent_returns_directory_and_creatable_name() {
    let dir = plant();
    let tree = local(dir.path());
    let parent = |path: &str| block_on(tree.find_parent(path.as_bytes()));
    let (found, name) = parent("a/link/new//").unwrap();
    let attr = found.attr_now().wait().unwrap();
    assert_eq!(
        (attr.file_type, attr.fileid),
        (FileType::Directory, fs::metadata(dir.path().join("a/b")).unwrap().ino())
    );
    assert_eq!(name.as_name().as_bytes(), b"new");
    for path in ["", "/", "a/..", ".", "a/."] {
        assert!(matches!(parent(path), Err(Error::InvalidArgument)), "{path}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// The library and the system resolve any path to the same file, or both fail.
    #[test]
    fn paths_lead_where_the_system_gets(
        parts in prop::collection::vec(prop::sample::select(vec!["a", "b", "file", "link", "up", "gone", "loop", ".", "..", ""]), 1..8)
    ) {
        let dir = plant();
        let tree = local(dir.path());
        let path = parts.join("/").trim_start_matches('/').to_owned();
        prop_assume!(!path.is_empty() && !climbs(&parts));
        let theirs = fs::metadata(dir.path().join(&path)).map(|found| found.ino());
        let ours = find(&tree, &path, Last::Follow);
        match (theirs, &ours) {
            (Ok(theirs), Ok(ours)) => prop_assert_eq!(theirs, *ours, "{}", path),
            (Err(_), Err(_)) => {}
            (theirs, ours) => prop_assert!(false, "{path}: the system: {theirs:?}, we: {ours:?}"),
        }
    }
}

/// Returns `true` if a path may leave the top: then the results differ, as the tree's top is its own parent.
fn climbs(parts: &[&str]) -> bool {
    let mut depth = 0;
    parts.iter().any(|part| {
        depth += match *part {
            ".." => -1,
            "up" => -depth,
            "" | "." | "gone" | "loop" => 0,
            _ => 1,
        };
        depth < 0
    })
}
