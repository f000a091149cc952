//! Concurrent callers, breaking connections, random interrupts: real sockets and real time.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tombolo_core::Interrupt;
use tombolo_host_rpc::client::{
    Call, CallError, InFlight, Interrupts, Options, ReceiveBuffer, RpcClient, Transport,
};
use tombolo_mem::Buffer;
use tombolo_wire_rpc::Credential;

use super::common::*;
use crate::tls::Certificates;

const TIME: Duration = Duration::from_millis(2500);

/// Forwards bytes in both directions, and breaks each connection after a while.
fn breaking_proxy(to: SocketAddr, stop: Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    let address = listener.local_addr().expect("address");
    thread::spawn(move || {
        let mut random = fastrand::Rng::with_seed(99);
        while let Ok((client, _)) = listener.accept() {
            let Ok(server) = TcpStream::connect(to) else { continue };
            let (limit, stop) = (4000 + random.u64(..6_000_000), stop.clone());
            let passed = Arc::new(AtomicU64::new(0));
            for (from, to) in [(&client, &server), (&server, &client)] {
                let (mut from, mut to) = (from.try_clone().expect("clone"), to.try_clone().expect("clone"));
                let (passed, stop) = (passed.clone(), stop.clone());
                thread::spawn(move || {
                    let mut bytes = vec![0; 100_000];
                    while let Ok(count @ 1..) = from.read(&mut bytes) {
                        let all = passed.fetch_add(count as u64, Ordering::SeqCst) + count as u64;
                        let is_over = all > limit && !stop.load(Ordering::SeqCst);
                        // The last bytes are forwarded in part.
                        let kept = if is_over { count / 2 } else { count };
                        if to.write_all(&bytes[..kept]).is_err() || is_over {
                            break;
                        }
                    }
                    let _ = from.shutdown(Shutdown::Both);
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        }
    });
    address
}

/// Reads, possibly interrupted, and checks the outcome.
fn read_some(client: &RpcClient, random: &mut fastrand::Rng, interrupted: &AtomicU64) {
    let (len, fill) = (random.u64(..200_000) as usize, random.u64(..1000) as u32);
    let mut buffer = Buffer::new(len);
    let interrupt = Interrupt::new();
    let receive_buffer = Some(ReceiveBuffer { sink: buffer.sink(0..len), find: find_data });
    let call = Call {
        receive_buffer,
        bulk: true,
        interrupt: interrupt.clone(),
        ..Call::new(READ, Credential::None)
    };
    let pending = client.call(call, |xdr| {
        xdr.u32(len as u32).u32(fill);
    });
    if random.u64(..4) == 0 {
        thread::sleep(Duration::from_micros(random.u64(..300)));
        interrupt.raise();
    }
    match wait(pending) {
        Ok(reply) => {
            assert_eq!(reply.data_bytes, len);
            assert!(buffer.as_slice().expect("it was let go") == pattern(fill, len));
        }
        Err(CallError::Interrupted { .. }) => {
            interrupted.fetch_add(1, Ordering::Relaxed);
            // The memory is returned; nothing writes to it any more.
            buffer.as_mut_slice().expect("it was let go").fill(0xee);
            thread::sleep(Duration::from_micros(200));
            assert!(buffer.as_slice().expect("ours").iter().all(|byte| *byte == 0xee));
        }
        Err(error) => panic!("{error}"),
    }
}

/// Writes, possibly interrupted, and changes the memory as soon as permitted.
fn write_some(client: &RpcClient, random: &mut fastrand::Rng, interrupted: &AtomicU64) {
    let (len, fill) = (random.u64(..200_000) as usize, random.u64(..1000) as u32);
    let mut buffer = Buffer::new(len);
    buffer.as_mut_slice().expect("ours").copy_from_slice(&pattern(fill, len));
    let wanted = written(&pattern(fill, len));
    let interrupt = Interrupt::new();
    let data = Some(buffer.source(0..len));
    let call = Call { data, bulk: true, interrupt: interrupt.clone(), ..Call::new(WRITE, Credential::None) };
    let pending = client.call(call, |xdr| {
        xdr.u32(len as u32);
    });
    if random.u64(..4) == 0 {
        thread::sleep(Duration::from_micros(random.u64(..300)));
        interrupt.raise();
    }
    let outcome = wait(pending);
    buffer.as_mut_slice().expect("it was let go").fill(0);
    match outcome {
        Ok(reply) => assert_eq!(reply.results, wanted),
        Err(CallError::Interrupted { .. }) => drop(interrupted.fetch_add(1, Ordering::Relaxed)),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn storm_of_breaks_and_interrupts_over_tcp() {
    let host = TestHost::default();
    storm(&host, &[1, 3], TIME, &Options::default());
}

#[test]
fn storm_of_breaks_and_interrupts_over_tls() {
    let certificates = Certificates::new();
    let host = certificates.host();
    storm(&host, &[2], TIME / 2, &certificates.options("alice"));
    let counts = host.server.counts();
    assert_eq!((counts.closed_too_long, counts.panics), (0, 0), "{counts:?}");
}

fn storm(host: &TestHost, connections: &[usize], time: Duration, options: &Options) {
    let stop = Arc::new(AtomicBool::new(false));
    let address = breaking_proxy(host.server.tcp_addresses()[0], stop.clone());
    for &connections in connections {
        let (interrupted, calls) = (AtomicU64::new(0), AtomicU64::new(0));
        let options = Options {
            connections,
            in_flight: InFlight::Adaptive { max: 32 },
            interrupts: Interrupts::Always,
            reserved_port: Some(false),
            ..options.clone()
        };
        let client = RpcClient::start(target(address, Transport::Tcp), options).expect("start");
        let begun = Instant::now();
        // On a busy machine, longer: until every event to be survived has happened.
        let go_on = || {
            let is_enough = client.counts().reconnects > 3 && interrupted.load(Ordering::Relaxed) > 0;
            begun.elapsed() < time || !is_enough && begun.elapsed() < 20 * time
        };
        thread::scope(|scope| {
            for seed in 1..=6 {
                let (client, interrupted, calls, go_on) = (client.clone(), &interrupted, &calls, &go_on);
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed * 7919);
                    while go_on() {
                        match random.u64(..3) {
                            0 => read_some(&client, &mut random, interrupted),
                            1 => write_some(&client, &mut random, interrupted),
                            _ => {
                                let bytes = pattern(random.u64(..100) as u32, random.u64(..3000) as usize);
                                let reply = wait(echo(&client, ECHO, &bytes)).expect("an answer");
                                assert!(reply.results == bytes);
                            }
                        }
                        calls.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        let counts = client.counts();
        assert_eq!((counts.outstanding, counts.waiting), (0, 0));
        assert_eq!(counts.calls, calls.load(Ordering::Relaxed));
        assert_eq!(counts.garbage, 0);
        assert!(counts.reconnects > 3, "{counts:?}");
        assert!(interrupted.load(Ordering::Relaxed) > 0, "{counts:?}");
    }
    stop.store(true, Ordering::SeqCst);
}
