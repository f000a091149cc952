//! Identities and exports that a link grants.

use std::sync::Arc;

use tombolo_back_memory::Memory;
use tombolo_back_nfs_client::{MountError, NfsExport};
use tombolo_core::Error;
use tombolo_core::fs::{Export, NodeId};
use tombolo_host_links::server::{AllowedIdentities, Credentials, VerifiedPeer};
use tombolo_nfs_client_tests::linked::{LinkPlan, LinkServer};
use tombolo_nfs_client_tests::mount::hard;
use tombolo_nfs_tests::test_server::{PATH, Plan, no_squash};
use tombolo_test_support::Session;

const JOE: u32 = 1000;

fn a_process(identities: AllowedIdentities) -> LinkPlan {
    let process = Credentials { pid: 1, uid: JOE, gid: 100 };
    LinkPlan { credentials: Some(VerifiedPeer { process, identities }), ..LinkPlan::default() }
}

/// Creates a tree whose root all users may write to.
fn tree() -> Arc<dyn Export> {
    let export: Arc<dyn Export> = Arc::new(Memory::default());
    Session::attach(&*export).chmod(NodeId::ROOT, 0o777).expect("its root is changed");
    export
}

fn owner_of_new(session: &Session, name: &str) -> Result<(u32, u32), Error> {
    session.mkdir(name).map(|made| (made.entry.attr.uid, made.entry.attr.gid))
}

#[test]
fn an_untrusted_process_calls_with_its_own_identity_only() {
    let groups = [7, 8].into();
    let server = LinkServer::new(Plan::over(tree()), a_process(AllowedIdentities::Own { groups }));
    let export = server.mounted(hard());
    let root = Session::attach(&*export);
    let joe = |gid, groups: &[u32]| root.as_user(JOE, gid, groups);
    assert_eq!(owner_of_new(&joe(100, &[]), "a").expect("itself"), (JOE, 100));
    assert_eq!(owner_of_new(&joe(7, &[8]), "b").expect("its groups"), (JOE, 7));
    assert_eq!(owner_of_new(&root, "c").expect("its kernel"), (JOE, 100), "never root");
    for other in [root.as_user(JOE + 1, 100, &[]), joe(0, &[]), joe(100, &[7, 4])] {
        let refused = owner_of_new(&other, "d").expect_err("another's name");
        assert!(matches!(refused, Error::NotPermitted), "{refused:?}");
    }
}

#[test]
fn a_trusted_process_calls_with_any_identity_after_squashing() {
    let server = LinkServer::new(Plan::over(tree()), a_process(AllowedIdentities::Any));
    let export = server.mounted(hard());
    let root = Session::attach(&*export);
    assert_eq!(owner_of_new(&root.as_user(5, 6, &[]), "a").expect("any user"), (5, 6));
    assert_eq!(owner_of_new(&root, "b").expect("root"), (0, 0));
    let plan = Plan::over(tree()).squashing(Default::default());
    let server = LinkServer::new(plan, a_process(AllowedIdentities::Any));
    let export = server.mounted(hard());
    let squashed = Session::attach(&*export);
    assert_eq!(owner_of_new(&squashed, "a").expect("the anonymous user"), (65_534, 65_534));
}

#[test]
fn link_gives_access_to_its_own_export_only() {
    let plan = || Plan::over(tree()).and("/other", tree(), no_squash());
    let server = LinkServer::new(plan(), LinkPlan::default());
    let route = server.route();
    NfsExport::mount_over(&route, PATH, hard()).expect("its own");
    let refused = NfsExport::mount_over(&route, "/other", hard()).expect_err("another");
    assert!(matches!(refused, MountError::Refused { .. }), "{refused}");
    assert!(refused.to_string().contains("not allowed"), "{refused}");
}
