//! Established links.

use tombolo_host_links::connect::{ConnectError, ConnectOptions, connect};
use tombolo_host_links::listen::ListenOptions;
use tombolo_shm::link::{Features, Health, Layout, Limits, Protocol, RefusalCode};

use crate::listener::common::{TestHost, until, works};

#[test]
fn a_link_is_made_and_carries_requests() {
    let host = TestHost::new(ListenOptions::default());
    let (line, _control_socket) = host.link();
    assert!(works(&line));
    assert!(line.features().contains(Features::QUIET));
    let peer = host.service.opened.lock().unwrap().pop_front().expect("opened");
    assert_eq!((peer.export.as_str(), peer.client.0), ("/src", [7; 16]));
    assert_eq!(peer.credentials.expect("a process").process.pid, std::process::id());
    assert_eq!(&*peer.label, format!("test:{}", std::process::id()));
}

#[test]
fn many_links_at_a_time_and_each_is_known() {
    let options = ListenOptions { links_max: 64, ..ListenOptions::default() };
    let host = TestHost::new(options);
    let links: Vec<_> = (0..16).map(|_| host.link()).collect();
    assert!(links.iter().all(|(line, _)| works(line)));
    // One user may have a quarter of all.
    let one_more = host.try_link("/src").expect_err("no room");
    assert!(
        matches!(one_more, ConnectError::Refused { refused, .. } if refused.code == RefusalCode::TooMany)
    );
    until("all are listed, and well", || {
        let guests = host.listener.guests();
        guests.len() == 16 && guests.iter().all(|guest| guest.health == Health::Well)
    });
    drop(links);
    until("all are gone", || host.listener.guests().is_empty());
    // The permit is returned with the session, a moment after the link's end.
    until("there is room again", || host.try_link("/src").is_ok_and(|(line, _control_socket)| works(&line)));
}

#[test]
fn the_server_gives_no_more_than_it_wants_to() {
    let limits = Limits { slots: 16, bytes: 1 << 20, ..Limits::default() };
    let host = TestHost::new(ListenOptions { limits, ..ListenOptions::default() });
    let connection = connect(&host.path, &TestHost::options("/src")).expect("a link");
    assert_eq!(connection.agreement.layout, Layout::new(16, 8, 1 << 20).expect("a layout"));
    assert_eq!(connection.agreement.server, host.listener.incarnation());
}

#[test]
fn a_link_to_an_old_peer_has_no_extension() {
    let limits = Limits { features: Features::AT_SOCKETS, ..Limits::default() };
    let old = TestHost::new(ListenOptions { limits, ..ListenOptions::default() });
    let (line, _control_socket) = old.link();
    assert!(works(&line) && !line.features().contains(Features::QUIET));
    let host = TestHost::new(ListenOptions::default());
    let options = ConnectOptions { offered: Features::AT_SOCKETS, ..TestHost::options("/src") };
    let connection = connect(&host.path, &options).expect("a link");
    assert!(!connection.ends.features.contains(Features::QUIET));
}

#[test]
fn refused_options_have_their_own_codes() {
    let host = TestHost::new(ListenOptions::default());
    let refusal = |options| match connect(&host.path, &options) {
        Err(ConnectError::Refused { refused, .. }) => refused.code,
        other => panic!("{other:?}"),
    };
    assert_eq!(refusal(TestHost::options("/none")), RefusalCode::NoExport);
    let mut options = TestHost::options("/src");
    options.protocol = Protocol::OncRpc;
    assert_eq!(refusal(options), RefusalCode::Protocol);
    let mut options = TestHost::options("/src");
    options.required = Features::from_bits_retain(1 << 63);
    assert_eq!(refusal(options), RefusalCode::Features);
    let no_rules = tempfile::NamedTempFile::new().expect("a file");
    let policy = tombolo_host_links::policy::Policy::load(no_rules.path()).expect("no rules");
    let closed = TestHost::new(ListenOptions { policy, ..ListenOptions::default() });
    let outcome = closed.try_link("/src").err();
    assert!(
        matches!(&outcome, Some(ConnectError::Refused { refused, .. }) if refused.code == RefusalCode::NotAllowed),
        "{outcome:?}"
    );
}

#[test]
fn an_absent_server_is_told_from_one_that_refuses() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("s");
    assert!(matches!(connect(&path, &TestHost::options("/")), Err(ConnectError::Away { .. })));
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a stale socket"));
    assert!(matches!(connect(&path, &TestHost::options("/")), Err(ConnectError::Away { .. })));
    let other = dir.path().join("other");
    let _stream = std::os::unix::net::UnixListener::bind(&other).expect("a socket of another kind");
    assert!(matches!(connect(&other, &TestHost::options("/")), Err(ConnectError::NotALinkSocket { .. })));
}

/// A stopped server: it accepts no connection, and the backlog is full or the hello is not read.
#[test]
fn connect_to_stopped_server_times_out() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("s");
    let _listener = tombolo_sys::packet::listen(&path, 0o600, 0).expect("listen");
    let mut options = TestHost::options("/");
    options.timeout = std::time::Duration::from_millis(20);
    let first = connect(&path, &options).map(drop);
    assert!(matches!(first, Err(ConnectError::Silent { .. })), "{first:?}");
    let _waiting = tombolo_sys::packet::connect(&path);
    let crowded = connect(&path, &options).map(drop);
    assert!(matches!(crowded, Err(ConnectError::Silent { .. })), "{crowded:?}");
}
