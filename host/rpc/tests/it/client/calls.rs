//! Calls to a well-behaved server.

use tombolo_host_rpc::client::{CallError, InFlight, Options, Recovery, RpcClient, Transport};
use tombolo_mem::Buffer;
use tombolo_wire_rpc::Accepted;

use super::common::*;

#[test]
fn a_call_is_answered_with_its_results() {
    let host = TestHost::default();
    for transport in [Transport::Tcp, Transport::Udp] {
        let client = RpcClient::start(host.target(transport), Options::of(transport)).expect("start");
        for len in [0, 4, 400, 40_000] {
            let bytes = pattern(len as u32, len);
            let reply = wait(echo(&client, ECHO, &bytes)).expect("a reply");
            assert!(reply.results == bytes && reply.data_bytes == 0, "{len} bytes over {transport:?}");
        }
        let error = wait(echo(&client, UNKNOWN, b"")).expect_err("no such procedure");
        assert!(matches!(error, CallError::NotServed { why: Accepted::ProcUnavail, .. }), "{error}");
        let counts = client.counts();
        assert_eq!((counts.calls, counts.replies, counts.outstanding), (5, 5, 0));
    }
}

#[test]
fn rpc_data_are_sent_and_received_in_place() {
    let host = TestHost::default();
    check_data(&host.client(Options::default()), &[0, 1, 3, 4096, 100_001, 1 << 20]);
}

fn check_data(client: &RpcClient, lens: &[usize]) {
    for &len in lens {
        let data = pattern(5, len);
        let reply = wait(write(client, data.clone())).expect("written");
        assert_eq!(reply.results, written(&data));
        let mut buffer = Buffer::new(len);
        let reply = wait(read(client, 9, len, &buffer)).expect("read");
        assert_eq!((reply.data_bytes, reply.data_announced, reply.results.len()), (len, 8..8 + len, 8));
        assert!(buffer.as_slice().expect("the client let go of it") == pattern(9, len));
    }
}

#[test]
fn many_calls_at_once_each_get_their_own_answer() {
    let host = TestHost::default();
    for connections in [1, 3] {
        let in_flight = InFlight::Fixed(20);
        let client = host.client(Options { connections, in_flight, ..Options::default() });
        std::thread::scope(|scope| {
            for thread in 0..4_u32 {
                let client = client.clone();
                scope.spawn(move || {
                    for round in 0..20_u32 {
                        let fill = |index: u32| thread * 1000 + round * 10 + index;
                        let mut buffers: Vec<_> =
                            (0..8).map(|index| Buffer::new(30_000 + 17 * index)).collect();
                        let mut pending = Vec::new();
                        for (index, buffer) in (0..).zip(&buffers) {
                            pending.push((
                                echo(&client, ECHO, &pattern(fill(index), 64)),
                                read(&client, fill(index), buffer.len(), buffer),
                                write(&client, pattern(fill(index), 20_000)),
                            ));
                        }
                        for (index, (echoed, read, wrote)) in (0..).zip(pending) {
                            assert_eq!(wait(echoed).expect("echo").results, pattern(fill(index), 64));
                            wait(read).expect("read");
                            let data = pattern(fill(index), 20_000);
                            assert_eq!(wait(wrote).expect("write").results, written(&data));
                        }
                        for (index, buffer) in (0..).zip(&mut buffers) {
                            let wanted = pattern(fill(index), buffer.len());
                            assert!(buffer.as_slice().expect("let go") == wanted);
                        }
                    }
                });
            }
        });
        let counts = client.counts();
        assert_eq!((counts.calls, counts.replies, counts.outstanding), (1920, 1920, 0));
        assert_eq!((counts.connections, counts.retransmissions), (connections as u64, 0));
    }
}

/// Over a slow network the first concurrent calls would each wait for a connection.
#[test]
fn the_first_call_has_all_connections_made() {
    let host = TestHost::default();
    let options = Options { connections: 3, ..Options::of(Transport::Tcp) };
    let client = RpcClient::start(host.target(Transport::Tcp), options).expect("start");
    wait(echo(&client, ECHO, b"ones")).expect("echo");
    eventually("all are made", || client.counts().connections == 3);
}

#[test]
fn datagrams_carry_data_both_ways() {
    let host = TestHost::default();
    let client = RpcClient::start(host.target(Transport::Udp), Options::of(Transport::Udp)).expect("start");
    check_data(&client, &[0, 1, 8192, 60_000]);
    let error = wait(write(&client, vec![0; 65_508])).expect_err("no datagram is as long");
    assert!(matches!(error, CallError::TooLong { .. }), "{error}");
}

#[test]
fn rpc_client_uses_reserved_port_if_permitted() {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("bind");
    let target = target(listener.local_addr().expect("address"), Transport::Tcp);
    let options = Options { reserved_port: Some(true), recovery: Recovery::Soft, ..Options::default() };
    let client = RpcClient::start(target, options).expect("start");
    let pending = echo(&client, ECHO, b"hello");
    listener.set_nonblocking(true).expect("set");
    let accepted = || listener.accept().ok();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
    loop {
        if let Some((_, from)) = accepted() {
            assert!((665..=1023).contains(&from.port()), "{from}");
            break;
        }
        if pending.is_ready() {
            tombolo_skip::skip!("no port below 1024 is for us: {:?}", pending.wait());
        }
        assert!(std::time::Instant::now() < end, "no connection came");
    }
}

#[test]
fn a_connection_is_made_anew_from_the_same_port() {
    let mut attempts = Vec::new();
    // Another process may take the port between two connections, but not every time.
    let is_kept = (0..50).any(|_| {
        let ports: Vec<u16> = ports_of_four_connections();
        let is_same = ports.iter().all(|port| *port == ports[0]);
        attempts.push(ports);
        is_same
    });
    assert!(is_kept, "{attempts:?}");
}

fn ports_of_four_connections() -> Vec<u16> {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("bind");
    let target = target(listener.local_addr().expect("address"), Transport::Tcp);
    let options = Options { reserved_port: Some(false), ..Options::default() };
    let client = RpcClient::start(target, options).expect("start");
    let mut ports = Vec::new();
    let mut pending = echo(&client, ECHO, b"hello");
    for _ in 0..4 {
        let (mut stream, from) = listener.accept().expect("accept");
        ports.push(from.port());
        let mut call = [0; 44 + 5];
        stream.read_exact(&mut call).expect("a call");
        let xid = u32::from_be_bytes([call[4], call[5], call[6], call[7]]);
        let reply = super::script::framed(&super::script::message(xid, b""));
        stream.write_all(&reply).expect("a reply");
        assert!(wait(pending).is_ok());
        pending = echo(&client, ECHO, b"hello");
    }
    ports
}
