//! A process that the policy lets in, but that is not root, acts as its own user only, on a server that could
//! act as any. Needs root.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::sync::Arc;

use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_back_vrpc_client::{Socket, VrpcExport};
use tombolo_core::fs::{Export, OpenFlags, PermissionCheck};
use tombolo_core::{Error, Squash, SquashMode};
use tombolo_front_vrpc_server::{Options, VrpcServer};
use tombolo_host_links::connect::ConnectOptions;
use tombolo_host_links::listen::{LinkListener, ListenOptions};
use tombolo_host_links::policy::Policy;
use tombolo_host_links::server::Server;
use tombolo_shm::doorbell::Mode as DoorbellMode;
use tombolo_shm::link::Incarnation;
use tombolo_sys::creds::{self, Checks};
use tombolo_test_support::{Session, plain};
use tombolo_vrpc_tests::site::client;

const USER: u32 = 54_321;
const OTHER: u32 = 54_322;
/// The process's group, and another that it has.
const GROUP: u32 = 54_300;
const SECOND: u32 = 54_301;
/// A group that the process does not have.
const FOREIGN: u32 = 54_302;

/// A directory with a file of each of the users, under rules.
struct TestServer {
    dir: tempfile::TempDir,
    _listener: LinkListener,
}

impl TestServer {
    fn new(rules: &str, options: Options) -> TestServer {
        let dir = tempfile::tempdir().expect("a directory");
        open_to_all(dir.path());
        let tree = dir.path().join("tree");
        fs::create_dir(&tree).expect("a directory");
        for (name, uid) in [("roots", 0), ("users", USER), ("others", OTHER)] {
            let path = tree.join(name);
            fs::write(&path, name).expect("a file");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("a mode");
            chown(&path, Some(uid), Some(uid)).expect("an owner");
        }
        fs::set_permissions(&tree, fs::Permissions::from_mode(0o777)).expect("a mode");
        let file = dir.path().join("rules");
        fs::write(&file, rules).expect("rules");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("a mode");
        let export: Arc<dyn Export> =
            Arc::new(LocalDir::open(&tree, DirOptions::default()).expect("an export"));
        let service = VrpcServer::new().with_export("tree", export, options);
        let server = Arc::new(Server::new(Arc::new(service)));
        let policy = Policy::load(&file).expect("rules");
        let options = ListenOptions { policy, socket_mode: 0o666, ..ListenOptions::default() };
        let listener = LinkListener::start(&dir.path().join("s"), server, options).expect("a listener");
        TestServer { dir, _listener: listener }
    }

    /// Attaches as a process of [`USER`].
    fn session(&self) -> Session {
        let options = ConnectOptions::new("tree", "test", Incarnation([1; 16])).expect("a layout");
        let socket =
            Socket::new(&self.dir.path().join("s"), options, DoorbellMode::Adaptive).expect("a watcher");
        // The kernel keeps with a connection the identity of the thread that made it.
        let process = creds::Identity { uid: USER, gid: GROUP, groups: &[GROUP, SECOND] };
        let assumed = creds::assume(process, Checks::Kernel).expect("this test needs root");
        let session = VrpcExport::new(socket).attach_session(&client()).expect("a session");
        drop(assumed);
        Session::of(session)
    }
}

fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a mode");
}

fn may_open(session: &Session, name: &str) -> Result<(), Error> {
    session.open(name, OpenFlags::READ).map(|file| session.release(file))
}

#[test]
fn unprivileged_process_acts_as_itself_only() {
    let place = TestServer::new("[[allow]]\neverybody = true\n", Options::default());
    let root = place.session();
    may_open(&root.as_user(USER, GROUP, &[SECOND]), "users").expect("its own");
    let other = may_open(&root.as_user(OTHER, GROUP, &[]), "others");
    assert!(matches!(other, Err(Error::NotPermitted)), "as another user: {other:?}");
    for (gid, groups) in [(FOREIGN, vec![]), (GROUP, vec![FOREIGN]), (0, vec![])] {
        let foreign = may_open(&root.as_user(USER, gid, &groups), "users");
        assert!(matches!(foreign, Err(Error::NotPermitted)), "in a group that it has not: {foreign:?}");
    }
    // The link stays up.
    may_open(&root.as_user(USER, SECOND, &[]), "users").expect("its own, in another of its groups");
}

#[test]
fn root_of_unprivileged_process_is_its_own_user() {
    // Also if the server leaves permission checks to the client.
    for checks in [PermissionCheck::BackEnd, PermissionCheck::Caller] {
        let place =
            TestServer::new("[[allow]]\neverybody = true\n", Options { checks, ..Options::default() });
        let root = place.session();
        for name in ["roots", "others"] {
            let opened = may_open(&root, name);
            assert!(matches!(opened, Err(Error::AccessDenied)), "{name}: {opened:?}");
        }
        may_open(&root, "users").expect("its own");
        let attr = root.create("made", &plain()).expect("its own").entry.attr;
        assert_eq!((attr.uid, attr.gid), (USER, GROUP));
    }
}

#[test]
fn trusted_peer_acts_with_any_identity() {
    let rules = format!("[[allow]]\nusers = [{USER}]\nidentities = 'any'\n");
    let place = TestServer::new(&rules, Options::default());
    let root = place.session();
    may_open(&root.as_user(OTHER, OTHER, &[]), "others").expect("believed");
    may_open(&root, "roots").expect("believed");
    let opened = may_open(&root.as_user(OTHER, OTHER, &[]), "roots");
    assert!(matches!(opened, Err(Error::AccessDenied)), "permissions are looked at: {opened:?}");
}

/// Tests also servers that leave permission checks to the client, which sends checked requests as root.
#[test]
fn squash_policy_applies_to_trusted_peers_too() {
    let rules = format!("[[allow]]\nusers = [{USER}]\nidentities = 'any'\n");
    let of = |mode| Squash { mode, anonymous_uid: OTHER, anonymous_gid: OTHER };
    for checks in [PermissionCheck::BackEnd, PermissionCheck::Caller] {
        let options = |mode| Options { checks, squash: of(mode), ..Options::default() };
        let place = TestServer::new(&rules, options(SquashMode::Root));
        let root = place.session();
        for root in [root.clone(), root.as_user(0, GROUP, &[0, SECOND])] {
            let opened = may_open(&root, "roots");
            assert!(matches!(opened, Err(Error::AccessDenied)), "{checks:?}: {opened:?}");
            may_open(&root, "others").expect("the user that root has become");
        }
        may_open(&root.as_user(USER, 0, &[0]), "users").expect("others are unchanged");

        let place = TestServer::new(&rules, options(SquashMode::All));
        let root = place.session();
        may_open(&root.as_user(USER, USER, &[]), "others").expect("all are the same");
        let opened = may_open(&root.as_user(USER, USER, &[]), "users");
        assert!(matches!(opened, Err(Error::AccessDenied)), "{checks:?}: {opened:?}");
    }
}
