//! Extended attributes and ACLs.

use tombolo_core::fs::{Exclusive, File, Mode, NewMode, NodeId, OpenFlags, XattrName, XattrSet};
use tombolo_core::{Error, Result};
use tombolo_test_support::{name, plain};

use super::cases;
use crate::refused;
use crate::waist::world::supported;
use crate::waist::{Verdict, World};

cases! { "xattrs":
    values_are_kept needs XATTRS,
    create_and_replace_are_told_apart needs XATTRS,
    names_are_listed needs XATTRS,
    a_value_that_does_not_fit_is_refused needs XATTRS,
    attributes_survive_a_rename needs XATTRS,
    links_have_no_user_attributes needs XATTRS,
    unknown_namespaces_are_refused needs XATTRS,
    an_access_acl_sets_the_mode needs XATTRS,
    the_mode_sets_an_access_acl needs XATTRS,
    a_default_acl_takes_the_umasks_place needs XATTRS,
    a_default_acl_is_for_directories needs XATTRS,
    a_broken_acl_is_refused needs XATTRS,
    an_acl_lets_a_named_user_in needs XATTRS | OWNERS | CHECKS,
}

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

fn get(w: &World, node: NodeId, text: &str) -> Result<Vec<u8>> {
    w.xattrs().get(&w.cx, node, xattr(text), 65_536).wait()
}

fn set(w: &World, node: NodeId, text: &str, value: &[u8], how: XattrSet) -> Result<()> {
    w.xattrs().set(&w.cx, node, xattr(text), value, how, false).wait()
}

fn remove(w: &World, node: NodeId, text: &str) -> Result<()> {
    w.xattrs().remove(&w.cx, node, xattr(text)).wait()
}

fn names(w: &World, node: NodeId) -> Vec<String> {
    let names = w.xattrs().list(&w.cx, node, 65_536).wait().expect("list");
    let split = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    // A host may add labels.
    let ours = split.filter(|name| !name.starts_with(b"security."));
    let mut names: Vec<_> = ours.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    names.sort();
    names
}

fn xattr(text: &str) -> XattrName<'_> {
    XattrName::new(text.as_bytes()).expect("a good name")
}

/// Encodes `user::rw-, user:7:rw-, group::r--, mask::rw-, other::---` as `linux/posix_acl_xattr.h` specifies.
fn sample_acl() -> Vec<u8> {
    acl(&[(0x01, 6, u32::MAX), (0x02, 6, 7), (0x04, 4, u32::MAX), (0x10, 6, u32::MAX), (0x20, 0, u32::MAX)])
}

fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&perm.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

fn values_are_kept(w: &World) -> Verdict {
    let (file, dir) = (w.file_with("file", b""), w.dir("dir"));
    for node in [file, dir] {
        for value in [&b"plain"[..], b"", b"\0\xff\0", &[b'v'; 1000]] {
            supported(set(w, node, "user.comment", value, XattrSet::Any))?;
            assert_eq!(get(w, node, "user.comment").expect("get"), value);
        }
        remove(w, node, "user.comment").expect("remove");
        refused!(get(w, node, "user.comment"), Error::NoAttribute);
        refused!(remove(w, node, "user.comment"), Error::NoAttribute);
    }
    Ok(())
}

fn create_and_replace_are_told_apart(w: &World) -> Verdict {
    let file = w.file_with("file", b"");
    refused!(present(set(w, file, "user.a", b"1", XattrSet::Replace))?, Error::NoAttribute);
    set(w, file, "user.a", b"1", XattrSet::Create).expect("create");
    refused!(set(w, file, "user.a", b"2", XattrSet::Create), Error::Exists);
    assert_eq!(get(w, file, "user.a").expect("get"), b"1");
    set(w, file, "user.a", b"2", XattrSet::Replace).expect("replace");
    assert_eq!(get(w, file, "user.a").expect("get"), b"2");
    Ok(())
}

fn present(result: Result<()>) -> std::result::Result<Result<()>, crate::waist::Skip> {
    if let Err(Error::NotSupported) = result { supported(result).map(Ok) } else { Ok(result) }
}

fn names_are_listed(w: &World) -> Verdict {
    let file = w.file_with("file", b"");
    assert_eq!(names(w, file), Vec::<String>::new());
    for text in ["user.b", "user.a", "user.with space"] {
        supported(set(w, file, text, b"x", XattrSet::Any))?;
    }
    assert_eq!(names(w, file), ["user.a", "user.b", "user.with space"]);
    refused!(w.xattrs().list(&w.cx, file, 3).wait(), Error::OutOfRange);
    refused!(w.xattrs().list(&w.cx, file, 0).wait(), Error::OutOfRange);
    Ok(())
}

fn a_value_that_does_not_fit_is_refused(w: &World) -> Verdict {
    let file = w.file_with("file", b"");
    supported(set(w, file, "user.a", &[7; 100], XattrSet::Any))?;
    refused!(w.xattrs().get(&w.cx, file, xattr("user.a"), 99).wait(), Error::OutOfRange);
    refused!(w.xattrs().get(&w.cx, file, xattr("user.a"), 0).wait(), Error::OutOfRange);
    assert_eq!(w.xattrs().get(&w.cx, file, xattr("user.a"), 100).wait().expect("get").len(), 100);
    refused!(set(w, file, "user.b", &vec![0; 70_000], XattrSet::Any), Error::TooBig | Error::NoSpace);
    Ok(())
}

fn attributes_survive_a_rename(w: &World) -> Verdict {
    let file = w.file_with("file", b"");
    supported(set(w, file, "user.a", b"kept", XattrSet::Any))?;
    w.rename("file", "else", Default::default()).expect("rename");
    assert_eq!(get(w, w.lookup("else").expect("lookup").node, "user.a").expect("get"), b"kept");
    Ok(())
}

fn links_have_no_user_attributes(w: &World) -> Verdict {
    let link = w.symlink("link", b"file").expect("symlink").entry.node;
    let file = w.file_with("file", b"");
    refused!(set(w, link, "user.a", b"x", XattrSet::Any), Error::NotPermitted | Error::NotSupported);
    assert_eq!(names(w, file), Vec::<String>::new(), "a link is not followed");
    Ok(())
}

fn unknown_namespaces_are_refused(w: &World) -> Verdict {
    let file = w.file_with("file", b"");
    refused!(set(w, file, "nonsense.a", b"x", XattrSet::Any), Error::NotSupported);
    refused!(set(w, file, "bare", b"x", XattrSet::Any), Error::NotSupported);
    Ok(())
}

fn an_access_acl_sets_the_mode(w: &World) -> Verdict {
    let file = w.file_with("file", b"");
    supported(set(w, file, ACCESS, &sample_acl(), XattrSet::Any))?;
    assert_eq!(w.attr(file).mode.bits(), 0o660, "the group's bits are the mask");
    assert_eq!(get(w, file, ACCESS).expect("get"), sample_acl());
    assert!(names(w, file).contains(&ACCESS.to_owned()));
    let minimal = acl(&[(0x01, 6, u32::MAX), (0x04, 4, u32::MAX), (0x20, 4, u32::MAX)]);
    set(w, file, ACCESS, &minimal, XattrSet::Any).expect("set");
    assert_eq!(w.attr(file).mode.bits(), 0o644);
    refused!(get(w, file, ACCESS), Error::NoAttribute);
    Ok(())
}

fn the_mode_sets_an_access_acl(w: &World) -> Verdict {
    let file = w.file_with("file", b"");
    supported(set(w, file, ACCESS, &sample_acl(), XattrSet::Any))?;
    w.chmod(file, 0o704).expect("chmod");
    let expected = acl(&[
        (0x01, 7, u32::MAX),
        (0x02, 6, 7),
        (0x04, 4, u32::MAX),
        (0x10, 0, u32::MAX),
        (0x20, 4, u32::MAX),
    ]);
    assert_eq!(get(w, file, ACCESS).expect("get"), expected);
    Ok(())
}

fn a_default_acl_takes_the_umasks_place(w: &World) -> Verdict {
    let dir = w.dir("dir");
    supported(set(w, dir, DEFAULT, &sample_acl(), XattrSet::Any))?;
    assert_eq!(w.attr(dir).mode.bits(), 0o755, "a default list is for others");
    let mode = NewMode { mode: Mode::new(0o666), umask: Mode::new(0o077) };
    let how = tombolo_core::fs::Create { mode, exclusive: Exclusive::Yes, ..plain() };
    let file = w.create((dir, "file"), &how).expect("create");
    w.release(File { node: file.entry.node, open: file.open });
    assert_eq!(file.entry.attr.mode.bits(), 0o660, "the umask does not count");
    assert_eq!(get(w, file.entry.node, ACCESS).expect("an inherited list"), sample_acl());
    let mode = NewMode { mode: Mode::new(0o777), umask: Mode::new(0o077) };
    let inner = w.fs.mkdir(&w.cx, dir, name("inner"), mode).wait().expect("mkdir").entry;
    assert_eq!(get(w, inner.node, DEFAULT).expect("directories hand the list on"), sample_acl());
    Ok(())
}

fn a_default_acl_is_for_directories(w: &World) -> Verdict {
    let (file, dir) = (w.file_with("file", b""), w.dir("dir"));
    supported(set(w, dir, DEFAULT, &sample_acl(), XattrSet::Any))?;
    refused!(set(w, file, DEFAULT, &sample_acl(), XattrSet::Any), Error::AccessDenied);
    remove(w, dir, DEFAULT).expect("remove");
    refused!(get(w, dir, DEFAULT), Error::NoAttribute);
    Ok(())
}

fn a_broken_acl_is_refused(w: &World) -> Verdict {
    let file = w.file_with("file", b"");
    supported(set(w, file, ACCESS, &sample_acl(), XattrSet::Any))?;
    let nameless_mask = acl(&[(0x01, 6, u32::MAX), (0x02, 6, 7), (0x04, 4, u32::MAX), (0x20, 0, u32::MAX)]);
    for broken in [&sample_acl()[..11], b"\x02\0\0\0\x99\0\0\0\0\0\0\0", &nameless_mask] {
        refused!(set(w, file, ACCESS, broken, XattrSet::Any), Error::InvalidArgument);
    }
    assert_eq!(get(w, file, ACCESS).expect("get"), sample_acl());
    Ok(())
}

fn an_acl_lets_a_named_user_in(w: &World) -> Verdict {
    let file = w.file_with("file", b"for seven");
    supported(set(w, file, ACCESS, &sample_acl(), XattrSet::Any))?;
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let seven = w.as_user(7, 7, &[]);
    let opened = seven.open(file, flags).expect("the named user");
    assert_eq!(seven.read_all(opened, 0, 20), b"for seven");
    seven.release(opened);
    refused!(w.as_user(8, 8, &[]).open(file, OpenFlags::READ), Error::AccessDenied);
    Ok(())
}
