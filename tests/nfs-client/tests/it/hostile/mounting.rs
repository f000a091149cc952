//! Mounts that fail with one clear line each.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use tombolo_back_memory::Memory;
use tombolo_back_nfs_client::{NfsExport, Options};
use tombolo_host_rpc::client::Transport;
use tombolo_nfs_client_tests::mount::{hard, server, soft};
use tombolo_nfs_client_tests::server::{ReceivedCall, Scripted, ScriptedReply};
use tombolo_nfs_tests::test_server::{PATH, TestServer};
use tombolo_wire_nfs3::mount::{self, MntReply};
use tombolo_wire_nfs3::{Procedure, Status};
use tombolo_wire_rpc::{Accepted, AuthStat, Rejected, ReplyHeader};
use tombolo_wire_xdr::Encoder;

use crate::hostile::refusals::failure;
use crate::hostile::stage::{in_time, told};

/// Returns a mount's error with its causes in one line.
fn refused(address: SocketAddr, path: &str, options: Options) -> String {
    let path = path.to_owned();
    in_time(move || {
        let Err(error) = NfsExport::mount(&server(address, Transport::Tcp), &path, options) else {
            panic!("mounted");
        };
        let line = told(&error);
        assert!(!line.contains('\n'), "more than one line: {line}");
        assert!(line.contains("127.0.0.1"), "does not name the host: {line}");
        line
    })
}

/// Returns the error of mounting a scripted server.
fn refused_by(script: impl FnMut(&ReceivedCall<'_>) -> ScriptedReply + Send + 'static) -> String {
    let honest = TestServer::over(Memory::default());
    let server = Scripted::start(honest.address(), script);
    refused(server.address(), PATH, soft())
}

#[test]
fn unreachable_host_is_one_line_for_hard_mounts_too() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("the port");
    drop(listener);
    for options in [soft(), hard()] {
        let begun = Instant::now();
        let line = refused(address, PATH, options);
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
        assert!(line.contains("refused"), "{line}");
        let host = address.to_string();
        for once in ["cannot", &*host] {
            assert_eq!(line.matches(once).count(), 1, "{once:?} is not said once: {line}");
        }
    }
}

#[test]
fn a_silent_host_times_out() {
    let line = refused_by(|_| ScriptedReply::Silence);
    assert!(!line.is_empty());
}

#[test]
fn mount_of_a_busy_server_times_out() {
    let line = refused_by(|asked| match asked.is_mnt() {
        true => ScriptedReply::Forward,
        false => failure(Status::Jukebox),
    });
    assert!(line.contains("timed out"), "{line}");
}

#[test]
fn an_unknown_export_is_named() {
    let honest = TestServer::over(Memory::default());
    let line = refused(honest.address(), "/nowhere", soft());
    assert!(line.contains("/nowhere"), "{line}");
}

#[test]
fn each_refusal_of_mount_says_why() {
    for (status, word) in [
        (mount::Status::Acces, "not allowed"),
        (mount::Status::NoEnt, "no such"),
        (mount::Status::NotDir, "directory"),
        (mount::Status::ServerFault, ""),
    ] {
        let line = refused_by(move |asked| match asked.is_mnt() {
            true => asked.results(&MntReply::Failed(status, ())),
            false => ScriptedReply::Forward,
        });
        assert!(line.to_lowercase().contains(word), "{status:?}: {line}");
    }
}

#[test]
fn an_rpc_rejection_names_its_reason() {
    type Refuse = fn(&ReceivedCall<'_>) -> ScriptedReply;
    let refusals: [Refuse; 3] = [
        |asked| asked.header(|xid| ReplyHeader::accept(xid, Accepted::ProgUnavail)),
        |asked| asked.header(|xid| ReplyHeader::accept(xid, Accepted::ProgMismatch { low: 1, high: 1 })),
        |asked| asked.header(|xid| ReplyHeader::reject(xid, Rejected::Auth(AuthStat::TooWeak))),
    ];
    for refuse in refusals {
        refused_by(move |asked| if asked.is_mnt() { refuse(asked) } else { ScriptedReply::Forward });
        // The same from NFS itself, after a successful MNT.
        refused_by(move |asked| if asked.is_mnt() { ScriptedReply::Forward } else { refuse(asked) });
    }
}

/// Returns empty and overlong root handles, endless flavor lists, and Kerberos as the only flavor.
#[test]
fn invalid_results_of_mnt_are_refused() {
    let results = |announced: u32, bytes: usize, flavors: &[u32]| {
        let mut results = Vec::new();
        let mut xdr = Encoder::new(&mut results);
        xdr.u32(0).u32(announced).fixed(&vec![7; bytes]);
        flavors.iter().for_each(|word| _ = xdr.u32(*word));
        results
    };
    let handles =
        [(0_u32, 0), (65, 65), (u32::MAX, 0)].map(|(announced, bytes)| results(announced, bytes, &[1, 1]));
    let flavors = [17_u32, 1 << 20, u32::MAX].map(|count| results(32, 32, &[count, 1]));
    for invalid in [&handles[..], &flavors, &[results(32, 32, &[1, 390_003])]].concat() {
        refused_by(move |asked| match asked.is_mnt() {
            true => ScriptedReply::Results(invalid.clone()),
            false => ScriptedReply::Forward,
        });
    }
}

#[test]
fn impossible_limits_are_survived_or_refused() {
    // rtmax, wtmax and dtpref of 0, 1 and the maximum.
    for value in [0_u32, 1, u32::MAX] {
        in_time(move || {
            let honest = TestServer::over(Memory::default());
            let scripted = Scripted::start(honest.address(), move |asked| {
                if !asked.is(Procedure::Fsinfo) {
                    return ScriptedReply::Forward;
                }
                ScriptedReply::edited(move |results| {
                    // Seven sizes, behind the attributes.
                    let attributes = if results[7] == 1 { 84 } else { 0 };
                    for size in results[8 + attributes..][..28].chunks_mut(4) {
                        size.copy_from_slice(&value.to_be_bytes());
                    }
                })
            });
            let address = scripted.address();
            if let Ok(export) = NfsExport::mount(&server(address, Transport::Tcp), PATH, soft()) {
                let world = tombolo_nfs_client_tests::mount::world(std::sync::Arc::new(export));
                let node = world.file_with("file", &[7; 10_000]);
                assert_eq!(world.contents(node), [7; 10_000]);
                assert_eq!(world.names(world.dir), ["file"]);
            }
        });
    }
}
