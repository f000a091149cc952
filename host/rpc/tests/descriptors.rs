//! A server out of descriptors: connections wait, none is lost, and no processor time is wasted. Runs in a
//! process of its own, as the limit applies to the process.

#[path = "it/server/common.rs"]
#[allow(dead_code, reason = "what the tests of the server share")]
mod common;

use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use common::{Client, TestHost};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

fn set_limit(current: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum }).expect("setrlimit");
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn callers_wait_until_there_is_a_descriptor_for_them() {
    let host = TestHost::default();
    let connect = || TcpStream::connect(host.server.tcp_addresses()[0]).map(Client::tuned);
    let ask = |client: &mut Client| assert_eq!(client.ask(b"e"), b"e");
    let mut first = connect().expect("connect");
    ask(&mut first);
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(1024);
    // Raises the limit by one each time, until a connecting socket takes the descriptor and none is left for
    // the server's side.
    let open = std::fs::read_dir("/proc/self/fd").expect("descriptors").count() as u64;
    let mut callers = Vec::new();
    let is_there = |count: usize| host.counts().connections == count as u64 + 1;
    for number in open.. {
        set_limit(number);
        callers.extend(connect());
        let mut patience = 20;
        while !is_there(callers.len()) && patience > 0 {
            thread::sleep(Duration::from_millis(10));
            patience -= 1;
        }
        if patience == 0 {
            break;
        }
    }
    let before = processor_time();
    thread::sleep(Duration::from_millis(500));
    let used = processor_time() - before;
    assert!(used < Duration::from_millis(100), "{used:?} in half a second");
    ask(&mut first);
    set_limit(limit);
    callers.extend((0..20).map(|_| connect().expect("connect")));
    callers.iter_mut().for_each(ask);
    assert_eq!(host.counts().refused, 0);
}
