//! Owners of new files and effects of a change of owner.

use tombolo_core::fs::{File, Mode, NewMode, RenameFlags};
use tombolo_test_support::{name, plain};

use super::cases;
use crate::waist::{Verdict, World};

cases! { "owners":
    new_files_belong_to_their_creator needs OWNERS,
    owner_and_group_are_set needs OWNERS,
    a_set_group_id_directory_hands_its_group_on needs OWNERS,
    a_new_owner_gets_no_privileges needs OWNERS,
    a_rename_keeps_the_owner needs OWNERS,
}

fn new_files_belong_to_their_creator(w: &World) {
    let user = w.as_user(1000, 1001, &[5, 6]);
    let created = user.create((w.dir, "file"), &plain()).expect("create");
    user.release(File { node: created.entry.node, open: created.open });
    assert_eq!((created.entry.attr.uid, created.entry.attr.gid), (1000, 1001));
    for made in [user.mkdir((w.dir, "dir")), user.symlink("link", b"target")] {
        let attr = made.expect("made").entry.attr;
        assert_eq!((attr.uid, attr.gid), (1000, 1001));
    }
    let mode = NewMode::settled(Mode::new(0o600));
    let fifo = tombolo_core::fs::FileType::Fifo;
    let made =
        w.fs.mknod(&user.cx, w.dir, name("fifo"), fifo, mode, Default::default()).wait().expect("mknod");
    assert_eq!((made.entry.attr.uid, made.entry.attr.gid), (1000, 1001));
}

fn owner_and_group_are_set(w: &World) -> Verdict {
    let node = w.file_with("file", b"");
    let attr = w.chown(node, 1234, 5678).expect("chown");
    assert_eq!((attr.uid, attr.gid), (1234, 5678));
    let link = w.symlink("link", b"file").expect("symlink").entry.node;
    w.chown(link, 42, 43).expect("chown of a link");
    assert_eq!((w.attr(link).uid, w.attr(node).uid), (42, 1234), "the link, not what it leads to");
    Ok(())
}

fn a_set_group_id_directory_hands_its_group_on(w: &World) -> Verdict {
    let dir = w.dir("dir");
    w.chown(dir, 0, 777).expect("chown");
    w.chmod(dir, 0o2777).expect("chmod");
    let user = w.as_user(1000, 1000, &[]);
    let file = user.create((dir, "file"), &plain()).expect("create");
    user.release(File { node: file.entry.node, open: file.open });
    assert_eq!((file.entry.attr.gid, file.entry.attr.mode.bits()), (777, 0o644));
    let inner = user.mkdir((dir, "inner")).expect("mkdir").entry.attr;
    assert_eq!((inner.gid, inner.mode.bits()), (777, 0o2755), "directories hand the bit on");
    Ok(())
}

fn a_new_owner_gets_no_privileges(w: &World) {
    let node = w.file_with("file", b"");
    w.chmod(node, 0o6755).expect("chmod");
    assert_eq!(w.chown(node, 1000, 1000).expect("chown").mode.bits(), 0o755);
    let dir = w.dir("dir");
    w.chmod(dir, 0o2755).expect("chmod");
    assert_eq!(w.chown(dir, 1000, 1000).expect("chown").mode.bits(), 0o2755, "a directory keeps its bits");
}

fn a_rename_keeps_the_owner(w: &World) {
    let node = w.file_with("file", b"");
    w.chown(node, 1000, 1001).expect("chown");
    w.chmod(node, 0o640).expect("chmod");
    w.rename("file", "else", RenameFlags::empty()).expect("rename");
    let attr = w.lookup("else").expect("lookup").attr;
    assert_eq!((attr.uid, attr.gid, attr.mode.bits()), (1000, 1001, 0o640));
}
