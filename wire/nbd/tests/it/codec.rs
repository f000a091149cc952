//! Round trips between both sides.

use tombolo_core::block::{Allocation, Extent};
use tombolo_wire_nbd::status::{Status, from_status, to_status};
use tombolo_wire_nbd::*;

fn option(code: OptionCode, export: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_option(&mut bytes, code, export);
    let head = OptionHead::decode(bytes.first_chunk().expect("a head")).expect("an option");
    assert_eq!((head.code, head.data_bytes), (code, bytes.len() - OptionHead::BYTES));
    bytes.split_off(OptionHead::BYTES)
}

#[test]
fn options_are_decoded_as_they_were_meant() {
    let data = option(OptionCode::GO, "disk");
    let go = ClientOption::Info { export: "disk", go: true, respects_block_sizes: true };
    assert_eq!(ClientOption::decode(OptionCode::GO, &data), Ok(go));
    let data = option(OptionCode::SET_META_CONTEXT, "disk");
    let decoded = ClientOption::decode(OptionCode::SET_META_CONTEXT, &data).expect("an option");
    let ClientOption::MetaContext { export: "disk", set: true, queries } = decoded else {
        panic!("{decoded:?}")
    };
    assert_eq!(queries.collect::<Vec<_>>(), [BASE_ALLOCATION]);
    let data = option(OptionCode::EXPORT_NAME, "disk");
    assert_eq!(ClientOption::decode(OptionCode::EXPORT_NAME, &data), Ok(ClientOption::ExportName("disk")));
    assert_eq!(ClientOption::decode(OptionCode(99), b"what"), Ok(ClientOption::Unknown));
    assert!(ClientOption::decode(OptionCode::LIST, b"x").is_err(), "LIST has no data");
}

#[test]
fn answers_to_options_are_decoded_as_they_were_meant() {
    let sizes = BlockSizes { minimum: 512, preferred: 4096, payload_max: 32 << 20 };
    for reply in [
        OptionReply::Ack,
        OptionReply::Server("disk"),
        OptionReply::Info(Info::Export { size_bytes: 1 << 40, flags: TransmissionFlags::SEND_FUA }),
        OptionReply::Info(Info::Name("disk")),
        OptionReply::Info(Info::Description("a disk")),
        OptionReply::Info(Info::BlockSize(sizes)),
        OptionReply::MetaContext { id: 7, name: BASE_ALLOCATION },
        OptionReply::Refused(Refusal::UNKNOWN, "no such export"),
    ] {
        let mut bytes = Vec::new();
        reply.encode(&mut bytes, OptionCode::GO);
        let head = OptionReplyHead::decode(bytes.first_chunk().expect("a head")).expect("an answer");
        assert_eq!(head.code, OptionCode::GO);
        let data = &bytes[OptionReplyHead::BYTES..];
        assert_eq!(head.data_bytes, data.len());
        assert_eq!(OptionReply::decode(&head, data), Ok(reply));
    }
}

#[test]
fn only_a_server_that_answers_options_is_greeted_back() {
    let flags = HandshakeFlags::FIXED_NEWSTYLE | HandshakeFlags::NO_ZEROES;
    assert_eq!(Greeting::decode(&Greeting(flags).encode()), Ok(Greeting(flags)));
    let plain = Greeting(HandshakeFlags::NO_ZEROES).encode();
    assert_eq!(Greeting::decode(&plain), Err(Malformed::OldStyle));
    assert_eq!(Greeting::decode(&[7; 18]), Err(Malformed::Magic));
}

#[test]
fn excessive_lengths_are_refused_by_headers() {
    let mut bytes = Vec::new();
    encode_option(&mut bytes, OptionCode::GO, "");
    bytes[12..16].copy_from_slice(&(OPTION_BYTES_MAX as u32 + 1).to_be_bytes());
    assert!(matches!(OptionHead::decode(bytes.first_chunk().expect("a head")), Err(Malformed::Length(_))));
    let name = "n".repeat(NAME_BYTES_MAX + 1);
    assert!(matches!(
        ClientOption::decode(OptionCode::EXPORT_NAME, name.as_bytes()),
        Err(Malformed::Length(_))
    ));
    for style in [HeaderStyle::Compact, HeaderStyle::Extended] {
        let mut request = Request {
            flags: CommandFlags::PAYLOAD_LEN,
            command: Command::WRITE,
            cookie: 1,
            offset: 0,
            len_bytes: u64::from(PAYLOAD_BYTES_MAX),
        };
        for (len_bytes, is_good) in [(request.len_bytes, true), (request.len_bytes + 1, false)] {
            request.len_bytes = len_bytes;
            let mut bytes = Vec::new();
            request.encode(style, &mut bytes);
            assert_eq!(Request::decode(style, &bytes).is_ok(), is_good, "{len_bytes}");
        }
    }
}

#[test]
fn requests_are_decoded_as_they_were_meant() {
    for style in [HeaderStyle::Compact, HeaderStyle::Extended] {
        let request = Request {
            flags: CommandFlags::FUA | CommandFlags::NO_HOLE,
            command: Command::WRITE_ZEROES,
            cookie: 77,
            offset: 1 << 40,
            len_bytes: if style == HeaderStyle::Compact { 1 << 31 } else { 1 << 50 },
        };
        let mut bytes = Vec::new();
        request.encode(style, &mut bytes);
        assert_eq!(bytes.len(), style.request_bytes());
        assert_eq!(Request::decode(style, &bytes), Ok(request));
        assert_eq!(request.payload_bytes(style), 0);
    }
}

#[test]
fn chunks_are_decoded_as_they_were_meant() {
    let extents = [
        Extent { len_bytes: 4096, allocation: Allocation::Data },
        Extent { len_bytes: 8192, allocation: Allocation::Zero },
        Extent { len_bytes: 512, allocation: Allocation::Hole },
    ];
    for style in [ReplyStyle::Structured, ReplyStyle::Extended] {
        let writer = ReplyWriter { style, cookie: 9, offset: 4096 };
        let mut bytes = Vec::new();
        writer.block_status(&mut bytes, 3, &extents);
        let (head, used) = ReplyHead::decode(style, &bytes).expect("a chunk").expect("all of it");
        let ReplyHead::Chunk { cookie: 9, kind, is_last: true, payload_bytes } = head else {
            panic!("{head:?}")
        };
        assert_eq!(payload_bytes as usize, bytes.len() - used);
        assert_eq!(decode_block_status(kind, &bytes[used..]), Ok((3, extents.to_vec())));
        for short in 0..used {
            assert_eq!(ReplyHead::decode(style, &bytes[..short]), Ok(None));
        }
        bytes.clear();
        writer.error(&mut bytes, Status::NoSpc, "full");
        let (_, used) = ReplyHead::decode(style, &bytes).expect("a chunk").expect("all of it");
        assert_eq!(decode_error(&bytes[used..]), Ok(Status::NoSpc));
    }
}

#[test]
fn every_status_survives_the_waist() {
    use Status::*;
    for status in [Perm, Io, NoMem, Inval, NoSpc, Overflow, NotSup] {
        assert_eq!(to_status(&from_status(status).expect_err("an error")), status);
        assert_eq!(Status::from_number(status as u32), status);
    }
    assert!(from_status(Ok).is_ok());
}
