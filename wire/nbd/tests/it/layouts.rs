//! Messages byte by byte, as in the specification.

use tombolo_wire_nbd::status::Status;
use tombolo_wire_nbd::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_handshake_lies_as_specified() {
    let greeting = Greeting(HandshakeFlags::FIXED_NEWSTYLE | HandshakeFlags::NO_ZEROES);
    assert_eq!(hex(&greeting.encode()), "4e42444d4147494349484156454f50540003");
    let mut option = Vec::new();
    encode_option(&mut option, OptionCode::GO, "ab");
    assert_eq!(hex(&option), "49484156454f5054000000070000000a0000000261620001".to_owned() + "0003");
    let mut reply = Vec::new();
    let flags = TransmissionFlags::HAS_FLAGS | TransmissionFlags::SEND_FLUSH;
    OptionReply::Info(Info::Export { size_bytes: 0x1000, flags }).encode(&mut reply, OptionCode::GO);
    assert_eq!(hex(&reply), "0003e889045565a900000007000000030000000c000000000000000010000005");
}

#[test]
fn requests_lie_as_specified() {
    let request = Request {
        flags: CommandFlags::FUA,
        command: Command::WRITE,
        cookie: 0x0102_0304_0506_0708,
        offset: 0x1000,
        len_bytes: 0x200,
    };
    let mut bytes = Vec::new();
    request.encode(HeaderStyle::Compact, &mut bytes);
    assert_eq!(hex(&bytes), "25609513000100010102030405060708000000000000100000000200");
    bytes.clear();
    request.encode(HeaderStyle::Extended, &mut bytes);
    assert_eq!(
        hex(&bytes),
        "21e41c710001000101020304050607080000000000001000".to_owned() + "0000000000000200"
    );
}

#[test]
fn replies_lie_as_specified() {
    let replies = |style| {
        let writer = ReplyWriter { style, cookie: 0x11, offset: 0x1000 };
        let (mut data, mut error) = (Vec::new(), Vec::new());
        writer.data(&mut data, 0x200);
        writer.error(&mut error, Status::Io, "");
        (hex(&data), hex(&error))
    };
    let (data, error) = replies(ReplyStyle::Simple);
    assert_eq!(data, "67446698000000000000000000000011");
    assert_eq!(error, "67446698000000050000000000000011");
    let (data, error) = replies(ReplyStyle::Structured);
    assert_eq!(data, "668e33ef00010001000000000000001100000208".to_owned() + "0000000000001000");
    assert_eq!(error, "668e33ef00018001000000000000001100000006".to_owned() + "000000050000");
    let (data, _) = replies(ReplyStyle::Extended);
    let head = "6e8a278c00010001000000000000001100000000000010000000000000000208";
    assert_eq!(data, head.to_owned() + "0000000000001000");
}
