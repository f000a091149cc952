//! Ports before and while they are served.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;

use tombolo_host_rpc::server::{Listeners, Options, Server, Transport};

use crate::server::common::{Client, Player};

fn any() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

#[test]
fn bound_port_refuses_connections_until_server_starts() {
    let bound = Listeners { tcp: vec![any()], udp: vec![any()] }.bind().expect("bind");
    let address = bound.tcp_addresses().next().expect("an address");
    assert_eq!(TcpStream::connect(address).expect_err("not yet").kind(), ErrorKind::ConnectionRefused);
    let server = Server::start(bound, Options::default(), &Arc::<Player>::default()).expect("start");
    assert_eq!((server.tcp_addresses(), server.udp_addresses()), (&[address][..], &[address][..]));
    assert_eq!(Client::connect(address).ask(b"e"), b"e");
}

#[test]
fn bind_error_names_port_and_transport() {
    // The port chosen for UDP may be in use for TCP by another process.
    let named = (0..20).any(|_| {
        let ours = Listeners { tcp: vec![], udp: vec![any()] }.bind().expect("bind");
        let server = Server::start(ours, Options::default(), &Arc::<Player>::default()).expect("start");
        let taken = server.udp_addresses()[0];
        let error = Listeners { tcp: vec![taken], udp: vec![taken] }.bind().expect_err("it is taken");
        assert_eq!(error.address, taken);
        error.transport == Transport::Udp
    });
    assert!(named);
    let two = Listeners { tcp: vec![any()], udp: vec![] };
    let (first, second) = (two.bind().expect("bind"), two.bind().expect("bind"));
    let ports: Vec<_> = first.tcp_addresses().chain(second.tcp_addresses()).collect();
    assert_ne!(ports[0], ports[1], "each free port is reserved before anything listens");
}
