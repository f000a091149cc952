//! Maximum number of connections of an address, and the choice of those closed beyond it.

use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant};

use tombolo_host_rpc::server::Options;

use crate::server::common::{Client, HOLD, TestHost};

fn host(connections_max: usize) -> TestHost {
    TestHost::new(Options { connections_max, ..Options::default() })
}

fn is_served(client: &mut Client) -> bool {
    client.send(b"e");
    client.try_receive().is_ok_and(|reply| reply == b"e")
}

/// Returns another connection, or `None` if it is refused.
fn served(host: &TestHost) -> Option<Client> {
    let mut client = host.connect();
    let sent = std::io::Write::write_all(&mut client.0, &crate::server::common::framed(b"e", 1));
    (sent.is_ok() && client.try_receive().is_ok()).then_some(client)
}

#[test]
fn one_address_leaves_half_of_the_connections_to_others() {
    let host = host(40);
    let mut crowd: Vec<_> = std::iter::from_fn(|| served(&host)).collect();
    assert_eq!(crowd.len(), 20);
    let other = Ipv4Addr::new(127, 0, 0, 2);
    let mut others: Vec<_> = (0..10).map(|_| host.connect_from(other)).collect();
    assert!(others.iter_mut().all(is_served), "half of what is left");
    let third = &mut host.connect_from(Ipv4Addr::new(127, 0, 0, 3));
    assert!(is_served(third), "there is always something left");
    assert!(crowd.iter_mut().all(is_served), "no connection in use has been closed");
    assert_eq!(host.counts().closed_for_others, 0);
}

#[test]
fn unused_connections_are_closed_and_used_ones_stay() {
    let host = host(40);
    let mut in_use: Vec<_> = (0..4).map(|_| host.connect()).collect();
    assert!(in_use.iter_mut().all(is_served));
    in_use[0].send(&[HOLD]);
    let _idle: Vec<_> = (0..16).map(|_| host.connect()).collect();
    host.until("all are there", |counts| counts.connections == 20);
    thread::sleep(Duration::from_millis(1100));
    let begun = Instant::now();
    let newcomers: Vec<_> = (0..8)
        .map(|_| {
            let newcomer = served(&host).expect("a place");
            assert!(in_use[1..].iter_mut().all(is_served));
            newcomer
        })
        .collect();
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert!(host.player.release(true));
    assert_eq!(in_use[0].receive(), [HOLD]);
    let counts = host.counts();
    assert!(counts.closed_for_others >= 8 && counts.connections <= 20, "{counts:?}");
    drop(newcomers);
}
