//! Progress of changes, as an extended attribute of the root.

use tombolo_core::fs::{NodeId, RenameFlags, Watermarks, XattrName};
use tombolo_core::{Error, Result};
use tombolo_test_support::Session;

use crate::world::Origin;

fn watermarks(session: &Session, node: NodeId) -> Result<Watermarks> {
    let xattrs = session.xattrs();
    let name = XattrName::new(Watermarks::XATTR).expect("a name");
    String::from_utf8(xattrs.get(&session.cx, node, name, 1 << 10).wait()?).expect("text").parse()
}

#[test]
fn watermarks_are_root_attributes_and_continue_over_restarts() {
    let origin = Origin::new();
    let mut proxy = origin.proxy();
    let of_root = |session: &Session| watermarks(session, NodeId::ROOT).expect("watermarks");
    proxy.put("file", b"text");
    let before = of_root(&proxy.session);
    assert!(before.change > 0 && before.at_origin == 0, "{before}");
    proxy.sync();
    assert_eq!(of_root(&proxy.session), Watermarks { on_disk: before.change, ..before });
    proxy.write_back.flush().expect("a flush");
    let after = of_root(&proxy.session);
    assert_eq!((after.change, after.at_origin), (before.change, before.change));
    let file = proxy.lookup("file").expect("there").node;
    assert!(matches!(watermarks(&proxy.session, file), Err(Error::NoAttribute)));
    drop(proxy);
    proxy = origin.proxy();
    proxy.rename("file", "moved", RenameFlags::empty()).expect("renamed");
    let again = of_root(&proxy.session);
    assert!(again.change > after.change && again.at_origin == after.at_origin, "{again}");
}
