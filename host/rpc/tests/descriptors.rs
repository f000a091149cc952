//! A server out of descriptors: connections wait, none is lost, and no processor time is wasted. Runs in a
//! process of its own, as the limit applies to the process.

use std::future::Future;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use tombolo_host_rpc::server::{Exchange, Listeners, Options, Outcome, Peer, Server, Service};

struct Echo;

impl Service for Echo {
    fn serve(
        self: Arc<Self>,
        _peer: Arc<Peer>,
        mut exchange: Box<Exchange>,
    ) -> impl Future<Output = (Box<Exchange>, Outcome)> + Send + 'static {
        exchange.reply.extend_from_slice(&exchange.head);
        std::future::ready((exchange, Outcome::Reply))
    }
}

fn ask(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
    let call = [0x80, 0, 0, 4, 1, 2, 3, 4];
    stream.write_all(&call).expect("send");
    let mut reply = [0; 8];
    stream.read_exact(&mut reply).expect("a reply");
    assert_eq!(reply, call);
}

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
    let bound = Listeners { tcp: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))], udp: vec![] }
        .bind()
        .expect("bind");
    let server = Server::start(bound, Options::default(), &Arc::new(Echo)).expect("the server starts");
    let connect = || TcpStream::connect(server.tcp_addresses()[0]);
    let mut first = connect().expect("connect");
    ask(&mut first);
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(1024);
    // Raises the limit by one each time, until a connecting socket takes the descriptor and none is left for
    // the server's side.
    let open = std::fs::read_dir("/proc/self/fd").expect("descriptors").count() as u64;
    let mut callers = Vec::new();
    let is_there = |count: usize| server.counts().connections == count as u64 + 1;
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
    assert_eq!(server.counts().refused, 0);
}
