//! The programs of libnfs (`libnfs-utils`): a client and a codec that others wrote.

use std::process::{Command, Output};

use tombolo_nfs_tests::client::{Expect, mode};
use tombolo_nfs_tests::fixture::{Fixture, scratch};
use tombolo_nfs_tests::test_server::PATH;

/// Returns libnfs's URL of a file of the export.
fn url(fixture: &Fixture, path: &str) -> String {
    let port = fixture.server.address().port();
    format!("nfs://127.0.0.1{PATH}/{path}?nfsport={port}&mountport={port}&version=3")
}

/// Runs a program; returns `None` and logs the reason if it is not installed.
fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    match Command::new(program).args(arguments).output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            tombolo_skip::skip!("{program} is not installed (Debian: libnfs-utils)");
        }
        Err(error) => panic!("{program}: {error}"),
    }
}

#[track_caller]
fn assert_succeeded(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn nfs_ls_lists_the_export() {
    let fixture = Fixture::on_host();
    fixture.file("file", b"12345");
    let dir = fixture.dir("dir");
    for index in 0..500 {
        fixture.file_in(&dir, &format!("entry-{index}"), b"");
    }
    fixture.nfs.symlink(&fixture.root, b"link", b"file", mode(0o777)).done();
    let Some(output) = run("nfs-ls", &[&url(&fixture, "")]) else { return };
    assert_succeeded(&output);
    let text = String::from_utf8_lossy(&output.stdout);
    let line = |name: &str| text.lines().find(|line| line.split_whitespace().last() == Some(name));
    assert!(line("file").expect("listed").starts_with("-rw-r--r--"), "{text}");
    assert!(line("dir").expect("listed").starts_with("drwxr-xr-x"), "{text}");
    assert!(line("link").expect("listed").starts_with('l'), "{text}");
    let Some(output) = run("nfs-ls", &[&url(&fixture, "dir")]) else { return };
    assert_succeeded(&output);
    assert_eq!(String::from_utf8_lossy(&output.stdout).matches("entry-").count(), 500);
}

#[test]
fn nfs_cp_and_nfs_cat_move_files_both_ways() {
    let (fixture, here) = (Fixture::on_host(), scratch());
    let bytes: Vec<u8> = (0..3_000_001_u32).map(|index| (index % 251) as u8).collect();
    let (local, back) = (here.path().join("local"), here.path().join("back"));
    std::fs::write(&local, &bytes).expect("a file to copy");
    let (local, back) = (local.to_str().expect("text"), back.to_str().expect("text"));
    let Some(output) = run("nfs-cp", &[local, &url(&fixture, "copy")]) else { return };
    assert_succeeded(&output);
    let copy = fixture.nfs.lookup(&fixture.root, b"copy").done().handle;
    assert!(fixture.contents(&copy) == bytes, "what arrived is not what was sent");
    let Some(output) = run("nfs-cp", &[&url(&fixture, "copy"), back]) else { return };
    assert_succeeded(&output);
    assert!(std::fs::read(back).expect("the copy of the copy") == bytes);
    let Some(output) = run("nfs-cat", &[&url(&fixture, "copy")]) else { return };
    assert_succeeded(&output);
    assert!(output.stdout == bytes);
}

#[test]
fn libnfs_sees_missing_names() {
    let fixture = Fixture::on_host();
    let Some(output) = run("nfs-cat", &[&url(&fixture, "nothing")]) else { return };
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && told.contains("NOENT"), "{told}");
}
