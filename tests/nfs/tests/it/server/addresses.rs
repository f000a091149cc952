//! Allowed addresses.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use tombolo_back_memory::Memory;
use tombolo_front_nfs_server::AllowList;
use tombolo_nfs_tests::client::{Answer, Caller, Message, Stream, Verdict, calls_on, fresh_xid};
use tombolo_nfs_tests::test_server::{PATH, Plan, TestServer};
use tombolo_wire_nfs3::mount::{Call as MountCall, DirPath};
use tombolo_wire_rpc::Accepted;

const ALLOWED: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 7, 0, 1));
const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 8, 0, 1));

fn server() -> TestServer {
    let allow = AllowList::new(vec!["127.7.0.0/16".parse().expect("a network")]);
    Plan { allow, ..Plan::over(Arc::new(Memory::default())) }.start()
}

/// Sends a call from this address; returns `None` if the connection is closed.
fn answer_to(server: &TestServer, from: IpAddr, message: &Message) -> Option<Answer> {
    let mut stream = Stream::connect_from(from, server.address()).ok()?;
    stream.send(&message.to_bytes()).ok()?;
    stream.receive().expect("a reply or the end").map(Answer::new)
}

fn mnt() -> Message {
    let path = DirPath::new(PATH.as_bytes()).expect("a path");
    Message::mount(fresh_xid(), &Caller::ROOT, &MountCall::Mnt(path))
}

/// Extracts the root's handle from a reply to MNT.
fn root(answer: &Answer) -> Vec<u8> {
    let bytes = answer.result_bytes();
    let len = u32::from_be_bytes(bytes[4..8].try_into().expect("a length")) as usize;
    bytes[8..8 + len].to_vec()
}

#[test]
fn only_allowed_addresses_are_served() {
    let server = server();
    let mounted = answer_to(&server, ALLOWED, &mnt()).expect("a reply");
    assert_eq!(mounted.status(), Ok(()));
    let refused = answer_to(&server, OTHER, &mnt());
    assert!(refused.is_none_or(|answer| answer.result_bytes().len() == 4 && answer.result_bytes() != [0; 4]));
    // A handle from another client does not help.
    let root = root(&mounted);
    let root = tombolo_wire_nfs3::FileHandle::new(&root).expect("a handle");
    for call in calls_on(root, b"name") {
        let message = || Message::nfs(fresh_xid(), &Caller::ROOT, &call, b"data!");
        if let Some(answer) = answer_to(&server, OTHER, &message()) {
            let served = Verdict::Accepted(Accepted::Success);
            assert!(answer.verdict != served || answer.status().is_err(), "{call:?} from elsewhere");
        }
        let answer = answer_to(&server, ALLOWED, &message()).expect("a reply");
        assert_eq!(answer.verdict, Verdict::Accepted(Accepted::Success), "{call:?}");
    }
}
