//! `tombolo.h` matches the library: C and C++ programs are compiled, linked and run with it, and both declare
//! the same functions.

use std::collections::BTreeSet;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use tombolo::{Counts, Stat, Time, Watermarks};

use crate::common::Served;

// api.c has the same figures.
const _: () = {
    assert!(size_of::<Time>() == 16 && offset_of!(Time, nsec) == 8);
    assert!(size_of::<Stat>() == 160 && offset_of!(Stat, gid) == 12 && offset_of!(Stat, ino) == 16);
    assert!(
        offset_of!(Stat, size) == 24 && offset_of!(Stat, generation) == 48 && offset_of!(Stat, mask) == 68
    );
    assert!(
        offset_of!(Stat, atime) == 72 && offset_of!(Stat, btime) == 120 && offset_of!(Stat, reserved) == 136
    );
    assert!(size_of::<Counts>() == 24 && offset_of!(Counts, requests) == 16);
    assert!(size_of::<Watermarks>() == 24 && offset_of!(Watermarks, at_origin) == 16);
};

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the library that was built with this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a path");
    let library = test.with_file_name("libtombolo.so");
    assert!(library.exists(), "{} does not exist", library.display());
    library
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

/// Compiles a program against the header and the library as installed.
fn compile(at: &TempDir, compiler: &str, words: &[&str], source: &Path) -> PathBuf {
    for name in ["libtombolo.so", "libtombolo.so.0"] {
        let _ = std::os::unix::fs::symlink(library(), at.path().join(name));
    }
    let program = at.path().join("program");
    let mut command = Command::new(compiler);
    command.args(["-Wall", "-Wextra", "-Werror", "-O1"]).args(words);
    command.arg(concat!("-DTOMBOLO_VERSION=\"", env!("CARGO_PKG_VERSION"), "\""));
    command.arg("-I").arg(folder().join("include")).arg(source).arg("-o").arg(&program);
    command.arg("-L").arg(at.path()).arg("-ltombolo").arg(format!("-Wl,-rpath,{}", at.path().display()));
    output(&mut command);
    program
}

fn calls_each_function(compiler: &str, words: &[&str]) {
    let served = Served::new();
    let at = TempDir::new().unwrap();
    let program = compile(&at, compiler, words, &folder().join("tests/api.c"));
    let socket = served.socket();
    let said = output(Command::new(program).arg(socket.to_str().unwrap()).arg("src"));
    assert_eq!(said, "ok\n");
}

#[test]
fn a_program_in_c_calls_each_function() {
    calls_each_function("cc", &["-std=c99", "-pedantic", "-D_DEFAULT_SOURCE"]);
}

#[test]
fn a_program_in_cpp_calls_each_function() {
    if Command::new("c++").arg("--version").output().is_err() {
        tombolo_skip::skip!("c++ is not installed");
    }
    calls_each_function("c++", &["-std=c++11", "-x", "c++"]);
}

#[test]
fn the_example_walks_as_it_says() {
    let served = Served::new();
    let at = TempDir::new().unwrap();
    let program = compile(&at, "cc", &["-std=c99"], &folder().join("examples/git-status-walk.c"));
    let paths = at.path().join("paths");
    std::fs::write(&paths, b"a/b/file\0a/link\0gone\0").unwrap();
    let paths = std::fs::File::open(paths).unwrap();
    let socket = served.socket();
    let mut command = Command::new(program);
    command.args(["-n", "3", "-d", served.dir.path().to_str().unwrap(), socket.to_str().unwrap(), "src"]);
    let said = output(command.stdin(paths));
    let passes: Vec<&str> = said.lines().filter(|line| line.starts_with("pass ")).collect();
    assert_eq!(passes.len(), 3, "{said}");
    for pass in passes {
        assert!(pass.contains(" 3 paths, 1 missing, 0 changed"), "{said}");
    }
    assert!(said.contains("differ from lstat(2): 0"), "{said}");
}

#[test]
fn header_and_library_name_the_same_functions() {
    let header = std::fs::read_to_string(folder().join("include/tombolo.h")).unwrap();
    // A declaration starts at column 0.
    let declared: BTreeSet<&str> = header
        .lines()
        .filter(|line| {
            ["int ", "ssize_t ", "void ", "const char *"].iter().any(|word| line.starts_with(word))
        })
        .filter_map(|line| line.split('(').next()?.rsplit([' ', '*']).next())
        .collect();
    let symbols = output(Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(library()));
    let exported: BTreeSet<&str> = symbols.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(declared.len(), 13, "{declared:?}");
    assert_eq!(exported, declared);
}

#[test]
fn library_has_a_soname_with_its_interface_number() {
    let dynamic = output(Command::new("readelf").arg("-d").arg(library()));
    assert!(dynamic.contains("Library soname: [libtombolo.so.0]"), "{dynamic}");
}
