//! Number of back-end operations per WRITE.

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::channel;

use tombolo_back_memory::Memory;
use tombolo_core::fs::{Export, Op};
use tombolo_nfs_tests::client::{Expect, Nfs, mode};
use tombolo_nfs_tests::fixture::{Fixture, local_dir};
use tombolo_nfs_tests::on_each;
use tombolo_nfs_tests::test_server::Plan;
use tombolo_test_support::{Act, Scripted};
use tombolo_wire_nfs3::args::StableHow;
use tombolo_wire_nfs3::{FileHandleBuf, Reply, Sattr3, Status, WccData};

/// Runs `test` over memory and over a directory, with a file of user 1000. The closure returns the operations
/// since it was last called.
fn on_each(test: impl Fn(&Fixture, &dyn Fn() -> Vec<Op>, &FileHandleBuf)) {
    let tree = tempfile::tempdir().expect("a scratch directory");
    for export in [Arc::<Memory>::default() as Arc<dyn Export>, local_dir(tree.path())] {
        let (noting, noted) = channel();
        let counted = Scripted::over(export, move |call| {
            let _ = noting.send(call.op);
            Act::Pass
        });
        let fixture = Fixture::new(Plan::over(counted), None);
        let file = fixture.file("file", b"data");
        fixture.nfs.setattr(&file, owner(1000), None).done();
        test(&fixture, &|| noted.try_iter().collect(), &file);
    }
}

fn owner(uid: u32) -> Sattr3 {
    Sattr3 { uid: Some(uid), ..Sattr3::default() }
}

fn write(nfs: &Nfs, file: &FileHandleBuf) -> Result<WccData, Status> {
    match nfs.write(file, 0, b"new", StableHow::Unstable) {
        Reply::Ok(ok) => Ok(ok.file_wcc),
        Reply::Failed(status, _) => Err(status),
    }
}

on_each!(write_of_owner_or_root_is_one_pass, |fixture, operations, file| {
    for client in [&fixture.as_user(1000), &fixture.nfs] {
        // The first one opens the file and learns its owner.
        write(client, file).expect("a write");
        operations();
        let wcc = write(client, file).expect("a write");
        assert_eq!(operations(), [Op::Write]);
        assert!(wcc.before.is_some() && wcc.after.is_some());
    }
});

on_each!(a_former_owner_is_refused_at_once, |fixture, operations, file| {
    let user = fixture.as_user(1000);
    write(&user, file).expect("a write");
    write(&user, file).expect("a write");
    fixture.nfs.setattr(file, Sattr3 { mode: Some(0o600), ..owner(1001) }, None).done();
    assert_eq!(write(&user, file), Err(Status::Acces));
    fixture.nfs.setattr(file, mode(0o666), None).done();
    write(&user, file).expect("a write by leave of the mode");
    operations();
    write(&user, file).expect("a write by leave of the mode");
    assert!(operations().contains(&Op::Getattr), "not the owner: the mode is looked at");
});

on_each!(a_write_to_a_removed_file_is_stale, |fixture, _, file| {
    let user = fixture.as_user(1000);
    write(&user, file).expect("a write");
    fixture.nfs.remove(&fixture.root, b"file").done();
    assert_eq!(write(&user, file), Err(Status::Stale));
});

/// Removes the file on the host without the server's knowledge; the server's descriptor stays open.
#[test]
fn write_to_file_removed_on_host_changes_nothing() {
    for uid in [1000, 0] {
        let tree = tempfile::tempdir().expect("a scratch directory");
        let fixture = Fixture::new(Plan::over(local_dir(tree.path())), None);
        let file = fixture.file("file", b"data");
        fixture.nfs.setattr(&file, owner(1000), None).done();
        let client = fixture.as_user(uid);
        for _ in 0..2 {
            write(&client, &file).expect("a write");
        }
        let path = tree.path().join("file");
        let held = std::fs::File::options().read(true).write(true).open(&path).expect("open");
        held.write_all_at(b"kept", 0).expect("write");
        std::fs::remove_file(&path).expect("remove");
        assert_eq!(write(&client, &file), Err(Status::Stale));
        let mut bytes = [0; 4];
        held.read_exact_at(&mut bytes, 0).expect("read");
        assert_eq!(&bytes, b"kept");
    }
}
