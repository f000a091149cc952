//! Calls over TLS (RFC 9289): the start of TLS, and absence of plain calls.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use tempfile::TempDir;
use tombolo_host_rpc::client::{CallError, Options, Recovery, RpcClient, Transport, Tunnel};
use tombolo_host_rpc::server::Options as ServerOptions;
use tombolo_host_tls::{Authority, ClientTls, Presents, Request, ServerTls, TlsError};
use tombolo_mem::Buffer;
use tombolo_wire_rpc::{AuthStat, CallHeader, Credential, Probe, Rejected, ReplyHeader, Xid};
use tombolo_wire_xdr::{Decoder, encoded};

use crate::client::common::{
    ECHO, HOLD, TestHost, echo, eventually, pattern, read, target, wait, write, written,
};
use crate::server::common::{Client, framed};

/// Certificates of a server at 127.0.0.1 and of a client, alice.
pub struct Certificates(TempDir);

impl Certificates {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create(&dir.path().join("ca"), "test-ca").unwrap();
        for (name, hosts) in [("server", vec!["127.0.0.1".to_owned()]), ("alice", Vec::new())] {
            let until = SystemTime::now() + Duration::from_secs(24 * 60 * 60);
            authority.issue(&Request { name: name.into(), hosts, until }, &dir.path().join(name)).unwrap();
        }
        Self(dir)
    }

    pub fn server_options(&self) -> ServerOptions {
        let tls = ServerTls::open(&self.0.path().join("server")).unwrap();
        ServerOptions { tls: Some(Arc::new(tls)), ..ServerOptions::default() }
    }

    pub fn host(&self) -> TestHost {
        TestHost::with(self.server_options())
    }

    pub fn options(&self, client: &str) -> Options {
        let host = "127.0.0.1".parse().unwrap();
        let tls = ClientTls::open(&self.0.path().join(client), host, Presents::Certificate).unwrap();
        Options { tls: Some(Arc::new(tls)), ..Options::default() }
    }
}

fn probe() -> Vec<u8> {
    encoded(&Probe { xid: Xid(7), program: 1, version: 1 })
}

fn plain_call() -> Vec<u8> {
    encoded(&CallHeader::new(Xid(9), 1, 1, 0, Credential::None))
}

fn address(host: &TestHost) -> SocketAddr {
    host.server.tcp_addresses()[0]
}

#[test]
fn calls_and_data_of_all_sizes_go_over_tls() {
    let certificates = Certificates::new();
    let host = certificates.host();
    let client = host.client(Options { connections: 2, ..certificates.options("alice") });
    let sizes = [0, 1, 3, 4000, 16_384, 65_535, 65_536, 65_537, 200_000, 1 << 20];
    let buffers: Vec<_> = sizes.iter().map(|len| Buffer::new(*len)).collect();
    let reads: Vec<_> =
        sizes.iter().zip(&buffers).map(|(len, buffer)| read(&client, 5, *len, buffer)).collect();
    let writes: Vec<_> = sizes.iter().map(|len| write(&client, pattern(6, *len))).collect();
    let echoes: Vec<_> =
        (0..100).map(|number| echo(&client, ECHO, &pattern(number, 40 * number as usize))).collect();
    for ((len, mut buffer), pending) in sizes.into_iter().zip(buffers).zip(reads) {
        assert_eq!(wait(pending).unwrap().data_bytes, len);
        assert!(buffer.as_slice().unwrap() == pattern(5, len));
    }
    for (len, pending) in sizes.into_iter().zip(writes) {
        assert_eq!(wait(pending).unwrap().results, written(&pattern(6, len)));
    }
    for (number, pending) in (0..).zip(echoes) {
        assert_eq!(wait(pending).unwrap().results, pattern(number, 40 * number as usize));
    }
}

#[test]
fn calls_resume_over_tls_after_server_restart() {
    let certificates = Certificates::new();
    let host = certificates.host();
    let client = host.client(certificates.options("alice"));
    let held = echo(&client, HOLD, b"kept");
    eventually("it is held", || host.player.held.held() == 1);
    let at = address(&host);
    drop(host);
    let host = TestHost::at(at, certificates.server_options());
    eventually("it is held again", || host.player.held.held() == 1);
    assert!(host.player.held.release(false));
    assert_eq!(wait(held).unwrap().results, b"kept");
}

#[test]
fn tls_client_sends_no_call_to_plain_server() {
    let certificates = Certificates::new();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    // A server without AUTH_TLS, or one whose answer is forged in transit.
    let server = thread::spawn(move || {
        let (mut stream, mut received) = (listener.accept().unwrap().0, vec![0; 44]);
        stream.read_exact(&mut received).unwrap();
        let xid = Xid(u32::from_be_bytes(*received[4..].first_chunk().unwrap()));
        let rejected = ReplyHeader::reject(xid, Rejected::Auth(AuthStat::RejectedCred));
        stream.write_all(&framed(&encoded(&rejected), 100)).unwrap();
        // Input after that, if any. The client may reset the connection.
        let _ = stream.read_to_end(&mut received);
        received
    });
    let options = Options { recovery: Recovery::Soft, retries: 0, ..certificates.options("alice") };
    let client = RpcClient::start(target(address, Transport::Tcp), options).unwrap();
    let outcome = wait(echo(&client, ECHO, b"secret"));
    assert!(matches!(outcome, Err(CallError::Insecure { source: TlsError::NotOffered, .. })), "{outcome:?}");
    let received = server.join().unwrap();
    assert!(Probe::receive(&received[4..]).is_some(), "the probe and nothing else: {received:?}");
}

#[test]
fn client_refuses_tls_through_tunnel() {
    let tunnel = Some(Tunnel::new("there".into(), "true".into(), Vec::new()));
    let options = Options { tunnel, ..Certificates::new().options("alice") };
    let started = RpcClient::start(target((Ipv4Addr::LOCALHOST, 1).into(), Transport::Tcp), options);
    assert!(started.is_err(), "its calls would not be encrypted");
}

#[test]
fn plain_call_is_rejected_as_too_weak() {
    let certificates = Certificates::new();
    let host = certificates.host();
    let mut client = Client::connect(address(&host));
    let reply = client.ask(&plain_call());
    let wanted = ReplyHeader::reject(Xid(9), Rejected::Auth(AuthStat::TooWeak));
    assert_eq!(Decoder::new(&reply).value::<ReplyHeader<'_>>(), Ok(wanted));
    assert!(client.is_closed());
    assert_eq!(host.player.begun.load(Ordering::SeqCst), 0);
    eventually("it is counted", || host.server.counts().closed_insecure == 1);
}

/// Otherwise an attacker in between could inject a call into the session of the client behind it.
#[test]
fn bytes_behind_tls_probe_are_rejected() {
    let certificates = Certificates::new();
    let host = certificates.host();
    let mut client = Client::connect(address(&host));
    let both = [framed(&probe(), 100), framed(&plain_call(), 100)].concat();
    client.0.write_all(&both).unwrap();
    assert_eq!(client.0.read(&mut [0]).unwrap(), 0, "the probe is not accepted");
    assert_eq!(host.player.begun.load(Ordering::SeqCst), 0);
}

#[test]
fn stalled_tls_handshake_is_closed() {
    let certificates = Certificates::new();
    let options = ServerOptions { stuck_after: Duration::from_millis(200), ..certificates.server_options() };
    let host = TestHost::with(options);
    let mut client = Client::connect(address(&host));
    client.ask(&probe());
    assert!(client.is_closed());
    let mut trickling = Client::connect(address(&host));
    trickling.ask(&probe());
    // A handshake record that never ends. On a busy machine the connection is closed earlier.
    let _ = trickling.0.write_all(&[22, 3, 1, 1, 0]);
    eventually("it is closed", || (&trickling.0).write_all(&[0]).is_err());
    let well = host.client(certificates.options("alice"));
    assert_eq!(wait(echo(&well, ECHO, b"still there")).unwrap().results, b"still there");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_strangers_first_bytes_harm_nobody_else(
        begins in prop_oneof![Just(Vec::new()), Just(framed(&probe(), 100)), Just(framed(&probe(), 7))],
        noise in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..300),
            proptest::collection::vec(any::<u8>(), 0..300).prop_map(|record| framed(&record, 1000)),
            (0..10_usize, any::<u8>()).prop_map(|(word, value)| {
                let mut record = probe();
                record[4 * word + 3] = value;
                framed(&record, 1000)
            }),
        ],
    ) {
        thread_local!(static HOST: (Certificates, TestHost) = {
            let certificates = Certificates::new();
            let host = certificates.host();
            (certificates, host)
        });
        HOST.with(|(_, host)| {
            let mut client = Client::connect(address(host));
            // The server may close the connection before everything is sent.
            let _ = client.0.write_all(&[begins, noise].concat());
            let _ = client.0.shutdown(Shutdown::Write);
            assert!(client.is_closed());
            assert_eq!((host.player.begun.load(Ordering::SeqCst), host.server.counts().panics), (0, 0));
        });
    }
}
