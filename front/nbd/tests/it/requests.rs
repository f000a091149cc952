//! Requests and replies in every style.

use std::io::{ErrorKind, Read};
use std::sync::atomic::Ordering;
use std::time::Duration;

use tombolo_core::block::{Allocation, Extent};
use tombolo_wire_nbd::status::Status;
use tombolo_wire_nbd::*;

use crate::common::{Client, Disk, NONE, PAGE, Served};

const STYLES: [ReplyStyle; 3] = [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended];

#[test]
fn written_data_is_read_in_every_style() {
    for style in STYLES {
        let served = Served::new(Disk::new(16));
        let mut client = served.client(style);
        let written = client.ask(Command::WRITE, NONE, (512, 1024), &[7; 1024]);
        assert_eq!(written, (Status::Ok, Vec::new()), "{style:?}");
        let (status, payload) = client.ask(Command::READ, NONE, (0, 2048), &[]);
        assert_eq!(status, Status::Ok);
        let wanted = [vec![0; 512], vec![7; 1024], vec![0; 512]].concat();
        assert_eq!(payload[payload.len() - 2048..], wanted);
        assert_eq!(payload.len(), if style == ReplyStyle::Simple { 2048 } else { 2056 });
    }
}

#[test]
fn long_request_spans_several_buffers() {
    let pages = (PAYLOAD_BYTES_MAX as usize) / PAGE;
    let served = Served::new(Disk::new(pages));
    let mut client = served.client(ReplyStyle::Structured);
    let data: Vec<u8> = (0..PAYLOAD_BYTES_MAX).map(|at| (at / 1000) as u8).collect();
    assert_eq!(client.ask(Command::WRITE, NONE, (0, data.len() as u64), &data).0, Status::Ok);
    assert!(served.disk.bytes() == data);
    assert!(client.ask(Command::READ, NONE, (0, data.len() as u64), &[]).1[8..] == data);
}

#[test]
fn fua_and_flush_reach_the_disk() {
    let served = Served::new(Disk::new(16));
    let mut client = served.client(ReplyStyle::Extended);
    client.ask(Command::WRITE, NONE, (0, 512), &[1; 512]);
    assert_eq!(served.disk.durable_writes.load(Ordering::SeqCst), 0);
    client.ask(Command::WRITE, CommandFlags::FUA, (0, 512), &[1; 512]);
    client.ask(Command::WRITE_ZEROES, CommandFlags::FUA, (0, 512), &[]);
    assert_eq!(served.disk.durable_writes.load(Ordering::SeqCst), 2);
    client.ask(Command::FLUSH, NONE, (0, 0), &[]);
    assert_eq!(served.disk.flushes.load(Ordering::SeqCst), 1);
    client.ask(Command::TRIM, CommandFlags::FUA, (0, 512), &[]);
    assert_eq!(served.disk.flushes.load(Ordering::SeqCst), 2, "a discard that must be durable is flushed");
}

/// Covers the behaviour of QEMU's client.
#[test]
fn extended_headers_imply_write_payload() {
    let served = Served::new(Disk::new(16));
    let mut client = served.client(ReplyStyle::Extended);
    let mut bytes = Vec::new();
    let write = Request { flags: NONE, command: Command::WRITE, cookie: 1, offset: 512, len_bytes: 1024 };
    write.encode(HeaderStyle::Extended, &mut bytes);
    client.send(&[bytes, vec![7; 1024]].concat());
    assert_eq!(client.reply(0).1, Status::Ok);
    assert_eq!(served.disk.bytes()[512..1536], [7; 1024]);
}

#[test]
fn pending_request_does_not_delay_the_next() {
    let served = Served::new(Disk::new(16));
    let mut client = served.client(ReplyStyle::Simple);
    served.disk.open_gate(false);
    client.request(1, Command::READ, NONE, (0, 512), &[]);
    client.request(2, Command::WRITE, NONE, (0, 512), &[1; 512]);
    assert_eq!(client.reply(0).0, 2);
    served.disk.open_gate(true);
    assert_eq!(client.reply(512).0, 1);
}

#[test]
fn pending_requests_are_answered_before_disconnect() {
    let served = Served::new(Disk::new(16));
    let mut client = served.client(ReplyStyle::Simple);
    served.disk.open_gate(false);
    client.request(1, Command::READ, NONE, (0, 512), &[]);
    client.request(2, Command::DISC, NONE, (0, 0), &[]);
    client.stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let early = client.stream.read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(early, Err(ErrorKind::WouldBlock), "nothing comes, not even the end");
    client.stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    served.disk.open_gate(true);
    assert_eq!(client.reply(512).0, 1);
    assert!(client.is_closed());
}

#[test]
fn holes_are_reported_and_req_one_limits_extents() {
    let page = PAGE as u64;
    for (style, kind) in [
        (ReplyStyle::Structured, ChunkKind::BLOCK_STATUS),
        (ReplyStyle::Extended, ChunkKind::BLOCK_STATUS_EXT),
    ] {
        let served = Served::new(Disk::new(16));
        let mut client = served.client(style);
        client.ask(Command::WRITE, NONE, (page, page), &[1; PAGE]);
        let extents = |client: &mut Client, flags, range| {
            decode_block_status(kind, &client.ask(Command::BLOCK_STATUS, flags, range, &[]).1).unwrap().1
        };
        let extent = |pages: u64, allocation| Extent { len_bytes: pages * page, allocation };
        let (hole, data) = (Allocation::Hole, Allocation::Data);
        let all = [extent(1, hole), extent(1, data), extent(14, hole)];
        assert_eq!(extents(&mut client, NONE, (0, 16 * page)), all);
        let one = extents(&mut client, CommandFlags::REQ_ONE, (page, 2 * page));
        assert_eq!(one, [extent(1, data)]);
    }
}

#[test]
fn bad_nbd_requests_are_refused_individually() {
    for style in STYLES {
        let served = Served::new(Disk::new(4));
        let mut client = served.client(style);
        let end = 4 * PAGE as u64;
        for (command, offset, len_bytes, status) in [
            (Command::READ, end, 512, Status::Inval),
            (Command::READ, 0, 1 << 30, Status::Inval),
            (Command::READ, 100, 512, Status::Inval),
            (Command::READ, u64::MAX - 511, 512, Status::Inval),
            (Command::WRITE, end, 512, Status::NoSpc),
            (Command::WRITE, 1, 4096, Status::Inval),
            (Command::TRIM, end, 512, Status::NoSpc),
            (Command::WRITE_ZEROES, 0, end + 512, Status::NoSpc),
            (Command::BLOCK_STATUS, 0, 0, Status::Inval),
            (Command::CACHE, 0, 512, Status::Inval),
            (Command(99), 0, 512, Status::Inval),
        ] {
            let data = vec![9; if command == Command::WRITE { len_bytes as usize } else { 0 }];
            let found = client.ask(command, NONE, (offset, len_bytes), &data).0;
            assert_eq!(found, status, "{command:?} {offset} {len_bytes}");
        }
        assert_eq!(client.ask(Command::READ, NONE, (0, 512), &[]).0, Status::Ok);
        assert_eq!(served.disk.bytes(), vec![0; 4 * PAGE]);
    }
}

#[test]
fn unknown_or_misplaced_flags_are_refused() {
    for style in STYLES {
        let served = Served::new(Disk::new(4));
        let mut client = served.client(style);
        let refused = |command| {
            let own = match command {
                Command::READ if style == ReplyStyle::Simple => NONE,
                Command::READ => CommandFlags::DF,
                Command::WRITE if style == ReplyStyle::Extended => CommandFlags::PAYLOAD_LEN,
                Command::WRITE_ZEROES => CommandFlags::NO_HOLE | CommandFlags::FAST_ZERO,
                Command::BLOCK_STATUS => CommandFlags::REQ_ONE,
                _ => NONE,
            };
            let all = (0..16).map(|bit| CommandFlags::from_bits_retain(1 << bit));
            all.filter(move |flag| !(own | CommandFlags::FUA).contains(*flag))
        };
        let commands = [
            Command::READ,
            Command::WRITE,
            Command::FLUSH,
            Command::TRIM,
            Command::WRITE_ZEROES,
            Command::BLOCK_STATUS,
        ];
        for command in commands {
            for flag in refused(command) {
                // The claimed payload length is followed by data.
                let has_data = command == Command::WRITE
                    || style == ReplyStyle::Extended && flag == CommandFlags::PAYLOAD_LEN;
                let data = vec![9; if has_data { 512 } else { 0 }];
                let status = client.ask(command, flag, (0, 512), &data).0;
                assert_eq!(status, Status::Inval, "{style:?} {command:?} {flag:?}");
            }
            if command != Command::READ && !(command == Command::BLOCK_STATUS && style == ReplyStyle::Simple)
            {
                let data = vec![0; if command == Command::WRITE { 512 } else { 0 }];
                let status = client.ask(command, CommandFlags::FUA, (0, 512), &data).0;
                assert_eq!(status, Status::Ok, "{style:?} {command:?}");
            }
        }
        assert_eq!(client.ask(Command::READ, CommandFlags::FUA, (0, 512), &[]).0, Status::Ok);
        assert_eq!(served.disk.bytes(), vec![0; 4 * PAGE]);
    }
}

#[test]
fn a_read_only_disk_refuses_changes() {
    let mut disk = Disk::new(4);
    disk.read_only = true;
    let served = Served::new(disk);
    let mut client = served.client(ReplyStyle::Structured);
    for (command, data) in
        [(Command::WRITE, &[1; 512][..]), (Command::TRIM, &[]), (Command::WRITE_ZEROES, &[])]
    {
        assert_eq!(client.ask(command, NONE, (0, 512), data).0, Status::Perm);
    }
}

#[test]
fn extents_require_negotiation() {
    let served = Served::new(Disk::new(4));
    let mut client = Client::greeted(&served.socket());
    assert!(!client.option(OptionCode::SET_META_CONTEXT), "structured replies come first");
    client.agree(OptionCode::EXTENDED_HEADERS);
    assert!(!client.option(OptionCode::STRUCTURED_REPLY), "what is agreed is more");
    assert!(!client.option(OptionCode::STARTTLS));
    assert!(!client.option(OptionCode(77)));
    client.agree(OptionCode::LIST);
    client.agree(OptionCode::INFO);
    client.agree(OptionCode::GO);
    client.style = ReplyStyle::Extended;
    assert_eq!(client.ask(Command::BLOCK_STATUS, NONE, (0, 512), &[]).0, Status::Inval);
}
