//! Attributes of a directory after a change in it by this mount.

use crate::push::{pushed, soon};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tombolo_back_memory::Memory;
use tombolo_core::fs::Op;
use tombolo_test_support::{Act, Scripted, Session};

#[test]
fn changed_directory_needs_no_request_for_attributes() {
    let asked = Arc::<AtomicU64>::default();
    let counter = asked.clone();
    let mounted = pushed(&*Scripted::over(Arc::new(Memory::default()), move |call| {
        counter.fetch_add(u64::from(call.op == Op::Getattr), Ordering::SeqCst);
        Act::Pass
    }));
    let at = |name: &str| mounted.at(name);
    fs::create_dir(at("dir")).expect("made");
    let stat = || rustix::fs::stat(at("dir")).expect("there");
    let requests = || asked.load(Ordering::SeqCst);
    // Until the first notice, of everything, has been received.
    soon("each reply to a change has the attributes", || {
        let before = requests();
        for number in 0..10 {
            fs::write(at(&format!("dir/file{number}")), "x").expect("written");
            fs::create_dir(at(&format!("dir/dir{number}"))).expect("made");
            assert_eq!(stat().st_nlink, 3 + number);
            fs::remove_file(at(&format!("dir/file{number}"))).expect("removed");
        }
        let after = requests();
        (0..10).for_each(|number| fs::remove_dir(at(&format!("dir/dir{number}"))).expect("removed"));
        after == before
    });
    fs::create_dir(at("dir/dir0")).expect("made");
    fs::set_permissions(at("dir"), std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("changed");
    assert_eq!(stat().st_mode & 0o777, 0o700);
    fs::rename(at("dir/dir0"), at("moved")).expect("renamed");
    assert_eq!(stat().st_nlink, 2);
    assert_eq!(fs::metadata(at("moved")).expect("there").nlink(), 2);
}

#[test]
fn directory_changed_by_others_as_well_is_current() {
    let memory = Arc::new(Memory::default());
    let other = Session::attach(&*memory);
    let mounted = pushed(&*memory);
    let links = || rustix::fs::stat(mounted.at("")).expect("there").st_nlink;
    for number in 0..20 {
        let before = links();
        fs::create_dir(mounted.at(format!("ours{number}"))).expect("made");
        other.dir(&format!("theirs{number}"));
        soon("both directories", || links() == before + 2);
    }
}
