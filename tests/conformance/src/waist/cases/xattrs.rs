//! Extended attributes and ACLs.

use tombolo_core::Error;
use tombolo_core::fs::{Exclusive, File, Mode, NewMode, NodeId, OpenFlags, XattrSet};
use tombolo_test_support::{name, plain, xattr_name};

use super::cases;
use crate::waist::world::{attempted, supported};
use crate::waist::{Verdict, World};
use crate::{acl, refused, sample_acl};

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

/// Lists the attributes, except labels that a host may add.
fn names(w: &World, node: NodeId) -> Vec<String> {
    let mut names = w.xattr_list(node).expect("list");
    names.retain(|name| !name.starts_with("security."));
    names
}

fn values_are_kept(w: &World) -> Verdict {
    let (file, dir) = (w.file_with("file", b""), w.dir("dir"));
    for node in [file, dir] {
        for value in [&b"plain"[..], b"", b"\0\xff\0", &[b'v'; 1000]] {
            supported(w.set_xattr(node, "user.comment", value))?;
            assert_eq!(w.xattr(node, "user.comment").expect("get"), value);
        }
        w.remove_xattr(node, "user.comment").expect("remove");
        refused!(w.xattr(node, "user.comment"), Error::NoAttribute);
        refused!(w.remove_xattr(node, "user.comment"), Error::NoAttribute);
    }
    Ok(())
}

fn create_and_replace_are_told_apart(w: &World) -> Verdict {
    let file = w.file_with("file", b"");
    let set = |value: &[u8], how| w.xattrs().set(&w.cx, file, xattr_name("user.a"), value, how, false).wait();
    refused!(attempted(set(b"1", XattrSet::Replace))?, Error::NoAttribute);
    set(b"1", XattrSet::Create).expect("create");
    refused!(set(b"2", XattrSet::Create), Error::Exists);
    assert_eq!(w.xattr(file, "user.a").expect("get"), b"1");
    set(b"2", XattrSet::Replace).expect("replace");
    assert_eq!(w.xattr(file, "user.a").expect("get"), b"2");
    Ok(())
}

fn names_are_listed(w: &World) -> Verdict {
    let file = w.file_with("file", b"");
    assert_eq!(names(w, file), Vec::<String>::new());
    for text in ["user.b", "user.a", "user.with space"] {
        supported(w.set_xattr(file, text, b"x"))?;
    }
    assert_eq!(names(w, file), ["user.a", "user.b", "user.with space"]);
    refused!(w.xattrs().list(&w.cx, file, 3).wait(), Error::OutOfRange);
    refused!(w.xattrs().list(&w.cx, file, 0).wait(), Error::OutOfRange);
    Ok(())
}

fn a_value_that_does_not_fit_is_refused(w: &World) -> Verdict {
    let file = w.file_with("file", b"");
    supported(w.set_xattr(file, "user.a", &[7; 100]))?;
    refused!(w.xattrs().get(&w.cx, file, xattr_name("user.a"), 99).wait(), Error::OutOfRange);
    refused!(w.xattrs().get(&w.cx, file, xattr_name("user.a"), 0).wait(), Error::OutOfRange);
    assert_eq!(w.xattrs().get(&w.cx, file, xattr_name("user.a"), 100).wait().expect("get").len(), 100);
    refused!(w.set_xattr(file, "user.b", &vec![0; 70_000]), Error::TooBig | Error::NoSpace);
    Ok(())
}

fn attributes_survive_a_rename(w: &World) -> Verdict {
    let file = w.file_with("file", b"");
    supported(w.set_xattr(file, "user.a", b"kept"))?;
    w.rename("file", "else", Default::default()).expect("rename");
    assert_eq!(w.xattr(w.lookup("else").expect("lookup").node, "user.a").expect("get"), b"kept");
    Ok(())
}

fn links_have_no_user_attributes(w: &World) {
    let link = w.symlink("link", b"file").expect("symlink").entry.node;
    let file = w.file_with("file", b"");
    refused!(w.set_xattr(link, "user.a", b"x"), Error::NotPermitted | Error::NotSupported);
    assert_eq!(names(w, file), Vec::<String>::new(), "a link is not followed");
}

fn unknown_namespaces_are_refused(w: &World) {
    let file = w.file_with("file", b"");
    refused!(w.set_xattr(file, "nonsense.a", b"x"), Error::NotSupported);
    refused!(w.set_xattr(file, "bare", b"x"), Error::NotSupported);
}

fn an_access_acl_sets_the_mode(w: &World) -> Verdict {
    let file = w.file_with("file", b"");
    supported(w.set_xattr(file, ACCESS, &sample_acl()))?;
    assert_eq!(w.attr(file).mode.bits(), 0o660, "the group's bits are the mask");
    assert_eq!(w.xattr(file, ACCESS).expect("get"), sample_acl());
    assert!(names(w, file).contains(&ACCESS.to_owned()));
    let minimal = acl(&[(0x01, 6, u32::MAX), (0x04, 4, u32::MAX), (0x20, 4, u32::MAX)]);
    w.set_xattr(file, ACCESS, &minimal).expect("set");
    assert_eq!(w.attr(file).mode.bits(), 0o644);
    refused!(w.xattr(file, ACCESS), Error::NoAttribute);
    Ok(())
}

fn the_mode_sets_an_access_acl(w: &World) -> Verdict {
    let file = w.file_with("file", b"");
    supported(w.set_xattr(file, ACCESS, &sample_acl()))?;
    w.chmod(file, 0o704).expect("chmod");
    let expected = acl(&[
        (0x01, 7, u32::MAX),
        (0x02, 6, 7),
        (0x04, 4, u32::MAX),
        (0x10, 0, u32::MAX),
        (0x20, 4, u32::MAX),
    ]);
    assert_eq!(w.xattr(file, ACCESS).expect("get"), expected);
    Ok(())
}

fn a_default_acl_takes_the_umasks_place(w: &World) -> Verdict {
    let dir = w.dir("dir");
    supported(w.set_xattr(dir, DEFAULT, &sample_acl()))?;
    assert_eq!(w.attr(dir).mode.bits(), 0o755, "a default list is for others");
    let mode = NewMode { mode: Mode::new(0o666), umask: Mode::new(0o077) };
    let how = tombolo_core::fs::Create { mode, exclusive: Exclusive::Yes, ..plain() };
    let file = w.create((dir, "file"), &how).expect("create");
    w.release(File { node: file.entry.node, open: file.open });
    assert_eq!(file.entry.attr.mode.bits(), 0o660, "the umask does not count");
    assert_eq!(w.xattr(file.entry.node, ACCESS).expect("an inherited list"), sample_acl());
    let mode = NewMode { mode: Mode::new(0o777), umask: Mode::new(0o077) };
    let inner = w.fs.mkdir(&w.cx, dir, name("inner"), mode).wait().expect("mkdir").entry;
    assert_eq!(w.xattr(inner.node, DEFAULT).expect("directories hand the list on"), sample_acl());
    Ok(())
}

fn a_default_acl_is_for_directories(w: &World) -> Verdict {
    let (file, dir) = (w.file_with("file", b""), w.dir("dir"));
    supported(w.set_xattr(dir, DEFAULT, &sample_acl()))?;
    refused!(w.set_xattr(file, DEFAULT, &sample_acl()), Error::AccessDenied);
    w.remove_xattr(dir, DEFAULT).expect("remove");
    refused!(w.xattr(dir, DEFAULT), Error::NoAttribute);
    Ok(())
}

fn a_broken_acl_is_refused(w: &World) -> Verdict {
    let file = w.file_with("file", b"");
    supported(w.set_xattr(file, ACCESS, &sample_acl()))?;
    let nameless_mask = acl(&[(0x01, 6, u32::MAX), (0x02, 6, 7), (0x04, 4, u32::MAX), (0x20, 0, u32::MAX)]);
    for broken in [&sample_acl()[..11], b"\x02\0\0\0\x99\0\0\0\0\0\0\0", &nameless_mask] {
        refused!(w.set_xattr(file, ACCESS, broken), Error::InvalidArgument);
    }
    assert_eq!(w.xattr(file, ACCESS).expect("get"), sample_acl());
    Ok(())
}

fn an_acl_lets_a_named_user_in(w: &World) -> Verdict {
    let file = w.file_with("file", b"for seven");
    supported(w.set_xattr(file, ACCESS, &sample_acl()))?;
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let seven = w.as_user(7, 7, &[]);
    let opened = seven.open(file, flags).expect("the named user");
    assert_eq!(seven.read_all(opened, 0, 20), b"for seven");
    seven.release(opened);
    refused!(w.as_user(8, 8, &[]).open(file, OpenFlags::READ), Error::AccessDenied);
    Ok(())
}
