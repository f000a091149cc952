//! Links over sealed memory and a socket, as between processes: the suite, and the end of the server.

use std::sync::Arc;

use tombolo_back_memory::Memory;
use tombolo_back_vrpc_client::{LinkLossPolicy, Socket, VrpcExport};
use tombolo_conformance::waist::{Needs, Setup, run_some};
use tombolo_core::Error;
use tombolo_core::fs::{Export, FileSystem, NodeId, PermissionCheck};
use tombolo_front_vrpc_server::{Options, VrpcServer};
use tombolo_host_links::connect::ConnectOptions;
use tombolo_host_links::listen::{LinkListener, ListenOptions};
use tombolo_host_links::server::Server;
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::Incarnation;
use tombolo_vrpc_tests::site::{client, root};

fn listen(dir: &tempfile::TempDir) -> LinkListener {
    let service = VrpcServer::new().with_export("src", Arc::new(Memory::default()), Options::default());
    let server = Arc::new(Server::new(Arc::new(service)));
    LinkListener::start(&dir.path().join("s"), server, ListenOptions::default()).expect("a listener")
}

fn export(dir: &tempfile::TempDir, name: &str) -> VrpcExport {
    let options = ConnectOptions::new(name, "test", Incarnation([1; 16])).expect("a layout");
    VrpcExport::new(Socket::new(&dir.path().join("s"), options, Mode::Adaptive).expect("a watcher"))
}

#[test]
fn the_suite_over_a_socket() {
    let dir = tempfile::tempdir().expect("a directory");
    let _listener = listen(&dir);
    let export: Arc<dyn Export> = Arc::new(export(&dir, "src"));
    let setup = Setup { owners: true, checks: PermissionCheck::BackEnd, lacks: Needs::empty() };
    // Over a socket the server learns of a session's end slightly later; that case runs over in-memory links.
    let report = run_some(&export, setup, |case| !case.name.ends_with("an_ended_session_gives_all_back"));
    report.expect("over a socket", &[]);
}

#[test]
fn impatient_session_fails_when_server_ends_and_new_begins() {
    let dir = tempfile::tempdir().expect("a directory");
    let listener = listen(&dir);
    let export = export(&dir, "").with_link_loss_policy(LinkLossPolicy::None);
    let fs = export.attach_session(&client()).expect("a session");
    fs.getattr(&root(), NodeId::ROOT, None).wait().expect("served");
    drop(listener);
    // Until the watcher has heard of it calls may still be waiting, but none is answered.
    for _ in 0..3 {
        let result = fs.getattr(&root(), NodeId::ROOT, None).wait();
        assert!(matches!(result, Err(Error::Disconnected)), "{result:?}");
    }
    assert!(fs.end().is_some());
    let _listener = listen(&dir);
    let again = export.attach_session(&client()).expect("a session with the new server");
    again.getattr(&root(), NodeId::ROOT, None).wait().expect("served");
}

#[test]
fn missing_export_is_refused_with_reason() {
    let dir = tempfile::tempdir().expect("a directory");
    let _listener = listen(&dir);
    let error = export(&dir, "none").attach_session(&client()).map(drop).expect_err("no session");
    let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
    let causes: Vec<_> = causes.map(ToString::to_string).collect();
    assert!(causes.iter().any(|cause| cause.contains("export")), "{causes:?}");
}
