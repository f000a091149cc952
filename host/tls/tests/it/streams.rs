//! Data through a session.

use std::io::Write;
use std::os::fd::AsFd;

use proptest::prelude::*;
use tombolo_host_tls::{Presents, Session};
use tombolo_mem::{Buffer, Source};
use tombolo_sys::Errno;
use tombolo_sys::gather::Gather;

use crate::world::{Ends, World};

fn ends(world: &World) -> Ends {
    let ends = Ends::new(&world.server("server"), &world.client("alice", "localhost", Presents::Certificate));
    assert_eq!(ends.outcome(), (Ok(()), Ok(())));
    ends
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn bytes_arrive_in_order_however_little_the_socket_takes() {
    let world = World::new();
    let ends = ends(&world);
    for (from, to) in [(&ends.client, &ends.server), (&ends.server, &ends.client)] {
        let (wanted, mut sent, mut arrived) = (bytes(3_000_001), 0, Vec::new());
        let source = Source::from(wanted.clone());
        let (mut full, mut turn) = (0, 0);
        while arrived.len() < wanted.len() {
            turn += 1;
            let mut gather = Gather::new(sent);
            gather.bytes(&wanted[..10]);
            let mut rest = source.clone();
            rest.advance(10);
            gather.source(&rest);
            if gather.len_bytes() > 0 {
                match from.0.send(from.1.as_fd(), &gather) {
                    Ok(some) => sent += some,
                    Err(error) => {
                        assert_eq!(error, Errno::AGAIN);
                        full += 1;
                    }
                }
            }
            // A slow reader, with space in two parts.
            let buffer = Buffer::new(if turn % 3 == 0 { 50_000 } else { 777 });
            let middle = buffer.len() / 2;
            match to.0.receive(to.1.as_fd(), &[&buffer.sink(0..middle), &buffer.sink(middle..buffer.len())]) {
                Ok(some) => arrived.extend(buffer.source(0..some).to_vec(some)),
                Err(error) => assert_eq!(error, Errno::AGAIN),
            }
        }
        assert!(full > 2, "the socket was full");
        assert!(arrived == wanted);
        assert_eq!(sent, wanted.len());
    }
}

#[test]
fn byte_encrypted_ahead_is_sent_once() {
    let world = World::new();
    let ends = ends(&world);
    let (client, stream) = &ends.client;
    let mut expected = 0_usize;
    let one = |byte: &[u8]| {
        let mut gather = Gather::new(0);
        gather.bytes(byte);
        client.send(stream.as_fd(), &gather)
    };
    while one(&[expected as u8]).is_ok() {
        expected += 1;
    }
    let mut seen = Vec::new();
    let receive = |seen: &mut Vec<u8>| {
        let buffer = Buffer::new(4096);
        while let Ok(some @ 1..) = ends.server.0.receive(ends.server.1.as_fd(), &[&buffer.sink(0..4096)]) {
            seen.extend(buffer.source(0..some).to_vec(some));
        }
    };
    receive(&mut seen);
    assert_eq!(one(&[expected as u8]), Ok(1), "again, as it was not sent");
    receive(&mut seen);
    assert_eq!(seen.len(), expected + 1);
    assert!(seen.iter().enumerate().all(|(at, byte)| *byte == at as u8));
}

#[test]
fn tls_stream_end_follows_its_data() {
    let world = World::new();
    let ends = ends(&world);
    let mut gather = Gather::new(0);
    gather.bytes(b"last words");
    assert_eq!(ends.client.0.send(ends.client.1.as_fd(), &gather), Ok(10));
    ends.client.1.shutdown(std::net::Shutdown::Both).unwrap();
    let buffer = Buffer::new(100);
    let receive = || ends.server.0.receive(ends.server.1.as_fd(), &[&buffer.sink(0..100)]);
    assert_eq!((receive(), receive(), receive()), (Ok(10), Ok(0), Ok(0)));
}

#[test]
fn tampered_tls_records_are_not_delivered() {
    let world = World::new();
    let ends = ends(&world);
    let mut gather = Gather::new(0);
    gather.bytes(&[7; 100]);
    ends.client.0.send(ends.client.1.as_fd(), &gather).unwrap();
    let mut raw = [0; 200];
    let len = std::io::Read::read(&mut &ends.server.1, &mut raw).unwrap();
    raw[len - 1] ^= 1;
    (&ends.client.1).write_all(&raw[..len]).unwrap();
    let buffer = Buffer::new(100);
    let receive = || ends.server.0.receive(ends.server.1.as_fd(), &[&buffer.sink(0..100)]);
    assert_eq!(receive(), Err(Errno::PROTO));
    assert_eq!(receive(), Err(Errno::PROTO), "for ever");
    assert!(ends.server.0.fault().is_some());
}

fn shake(session: &Session, stream: &std::os::unix::net::UnixStream) -> Result<(), Errno> {
    (0..4)
        .map(|_| session.handshake(stream.as_fd()))
        .find(|outcome| *outcome != Err(Errno::AGAIN))
        .unwrap_or(Ok(()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_strangers_bytes_end_a_handshake_and_nothing_else(
        noise in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..400),
            // The beginning of a handshake record.
            proptest::collection::vec(any::<u8>(), 4..400).prop_map(|rest| [&[22, 3, 1, 0, rest.len() as u8], &rest[..]].concat()),
        ],
    ) {
        thread_local!(static WORLD: World = World::new());
        WORLD.with(|world| {
            for (session, is_server) in [
                (world.server("server").session().unwrap(), true),
                (world.client("alice", "localhost", Presents::Certificate).session().unwrap(), false),
            ] {
                let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
                ours.set_nonblocking(true).unwrap();
                let _ = shake(&session, &ours);
                (&theirs).write_all(&noise).unwrap();
                drop(theirs);
                let outcome = shake(&session, &ours);
                assert!(outcome.is_err(), "{is_server}: {outcome:?}");
            }
        });
    }
}
