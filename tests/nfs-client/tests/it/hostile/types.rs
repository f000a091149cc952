//! Nodes that change their identity while the client knows them.

use tombolo_core::fs::{FileType, OpenFlags};
use tombolo_nfs_client_tests::server::{ReceivedCall, ScriptedReply};
use tombolo_wire_nfs3::{FileType3, Procedure};

use crate::hostile::stage::on_soft;

/// Offsets of type and fileid in the results of GETATTR.
const TYPE_AT: usize = 4;
const FILEID_AT: usize = 56;

const OTHERS: [FileType3; 6] = [
    FileType3::Directory,
    FileType3::BlockDevice,
    FileType3::CharDevice,
    FileType3::Symlink,
    FileType3::Socket,
    FileType3::Fifo,
];

#[test]
fn regular_file_may_not_change_its_type() {
    on_soft(|stage, world| {
        let node = world.file_with("file", b"contents");
        for other in OTHERS {
            stage.server.on(Procedure::Getattr, move |_| {
                ScriptedReply::patched(TYPE_AT, &other.number().to_be_bytes())
            });
            let attr = world.fs.getattr(&world.cx, node, None).wait();
            attr.expect_err("a node's type does not change");
        }
        stage.server.be_honest();
        assert_eq!(world.attr(node).file_type, FileType::Regular);
        assert_eq!(world.contents(node), b"contents");
    });
}

#[test]
fn directory_may_not_become_a_file() {
    on_soft(|stage, world| {
        stage.server.on(Procedure::Getattr, |_| {
            ScriptedReply::patched(TYPE_AT, &FileType3::Regular.number().to_be_bytes())
        });
        world.fs.getattr(&world.cx, world.dir, None).wait().expect_err("a node's type does not change");
    });
}

#[test]
fn an_unknown_file_type_is_an_error() {
    on_soft(|stage, world| {
        for number in [0_u32, 8, u32::MAX] {
            stage
                .server
                .on(Procedure::Getattr, move |_| ScriptedReply::patched(TYPE_AT, &number.to_be_bytes()));
            world.fs.getattr(&world.cx, world.dir, None).wait().expect_err("no such type");
        }
    });
}

/// Uses a handle for another file, which must not be taken for the first.
#[test]
fn handle_of_another_file_is_not_read_as_first() {
    on_soft(|stage, world| {
        let node = world.file_with("file", b"contents");
        let another = 0x00ff_ffff_ffff_u64.to_be_bytes();
        stage.server.now(move |asked: &ReceivedCall<'_>| {
            if asked.is(Procedure::Getattr) {
                return ScriptedReply::patched(FILEID_AT, &another);
            }
            // ACCESS has a word before the attributes.
            if asked.is(Procedure::Access) {
                ScriptedReply::patched(FILEID_AT + 4, &another)
            } else {
                ScriptedReply::Forward
            }
        });
        let opened = world.open(node, OpenFlags::READ);
        opened.expect_err("the handle is of another file now");
    });
}
