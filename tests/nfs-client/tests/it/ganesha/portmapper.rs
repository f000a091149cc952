//! Scripted portmappers, run inside the namespaces.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use tombolo_back_memory::Memory;
use tombolo_back_nfs_client::{NfsExport, Options, Ports, Server, Transport};
use tombolo_nfs_client_tests::mount::world;
use tombolo_nfs_client_tests::server::{ReceivedCall, Scripted, ScriptedReply};
use tombolo_nfs_tests::test_server::{PATH, TestServer};
use tombolo_wire_rpc::{Accepted, ReplyHeader, portmap};

use crate::hostile::stage::told;

fn server() -> Server {
    let ports = Ports::Portmapper { nfs: None };
    let address = IpAddr::from(Ipv4Addr::LOCALHOST);
    Server { name: "localhost".to_owned(), address, ports, transport: Transport::Tcp, tls: None }
}

/// Returns the error of a mount by way of this portmapper.
fn refused(answer: impl Fn(&ReceivedCall<'_>) -> ScriptedReply + Send + 'static) -> String {
    let honest = TestServer::over(Memory::default());
    let portmapper = Scripted::start_at(portmap::PORT, honest.address(), answer);
    let error = NfsExport::mount(&server(), PATH, Options::default()).expect_err("it leads nowhere");
    assert!(!portmapper.seen().is_empty(), "it was not asked");
    let line = told(&error);
    assert!(line.contains("localhost") && !line.contains('\n'), "{line}");
    line
}

#[test]
#[ignore = "run in namespaces of its own"]
fn wrong_portmapper_results() {
    // Not registered; ports out of range; missing and excess results.
    let words: [&[u32]; 6] = [&[0], &[65_536], &[u32::MAX], &[], &[1, 2, 3], &[9]];
    for words in words {
        let results: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        let line = refused(move |_| ScriptedReply::Results(results.clone()));
        eprintln!("{words:?}: {line}");
    }
    refused(|_| ScriptedReply::Results(vec![0, 0, 1]));
    refused(|_| ScriptedReply::Close);
    refused(|_| ScriptedReply::Silence);
    refused(|asked| asked.header(|xid| ReplyHeader::accept(xid, Accepted::ProgUnavail)));
}

#[test]
#[ignore = "run in namespaces of its own"]
fn portmapper_reply_with_ports() {
    let honest = TestServer::over(Memory::default());
    let port = u32::from(honest.address().port());
    let portmapper = Scripted::start_at(portmap::PORT, honest.address(), move |asked| {
        assert_eq!((asked.program, asked.procedure), (portmap::PROGRAM, portmap::GETPORT));
        ScriptedReply::Results(port.to_be_bytes().to_vec())
    });
    let export = NfsExport::mount(&server(), PATH, Options::default()).expect("mounted");
    let world = world(Arc::new(export));
    let node = world.file_with("file", b"contents");
    assert_eq!(world.contents(node), b"contents");
    assert_eq!(portmapper.seen().len(), 2, "once for each program");
}
