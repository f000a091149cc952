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
fn files_and_directories_may_not_change_their_type() {
    on_soft(|stage, world| {
        let node = world.file_with("file", b"contents");
        let of_file = OTHERS.map(|other| (node, other.number()));
        // The last three are no types.
        let of_dir = [FileType3::Regular.number(), 0, 8, u32::MAX].map(|number| (world.dir, number));
        for (node, number) in of_file.into_iter().chain(of_dir) {
            let bytes = number.to_be_bytes();
            stage.server.on(Procedure::Getattr, move |_| ScriptedReply::patched(TYPE_AT, &bytes));
            let attr = world.fs.getattr(&world.cx, node, None).wait();
            attr.map(|attr| attr.file_type).expect_err("a node's type does not change");
        }
        stage.server.be_honest();
        assert_eq!(world.attr(node).file_type, FileType::Regular);
        assert_eq!(world.contents(node), b"contents");
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
                ScriptedReply::patched(FILEID_AT, &another)
            } else if asked.is(Procedure::Access) {
                // ACCESS has a word before the attributes.
                ScriptedReply::patched(FILEID_AT + 4, &another)
            } else {
                ScriptedReply::Forward
            }
        });
        let opened = world.open(node, OpenFlags::READ);
        opened.expect_err("the handle is of another file now");
    });
}
