//! Reads and writes of file data.

use tombolo_core::fs::{File, Write};
use tombolo_host_links::ProtocolError;
use tombolo_wire_vrpc::{Data, Destination, Reply, Returned};

use crate::buffers::{self, ReplyBuffer, wire_len};
use crate::exchange::{Exchange, or_cut};

pub(super) fn read(mut exchange: Exchange<'_>, file: File, offset: u64, destination: &Destination<'_>) {
    if destination.len_bytes() > exchange.shared.options.transfer_bytes_max {
        return exchange.cut(too_much());
    }
    let reply_buffer = or_cut!(exchange, ReplyBuffer::of(destination, &exchange.responder));
    let sink = reply_buffer.sink(&mut exchange.parts);
    let len_max = reply_buffer.len_bytes();
    let in_frame = matches!(reply_buffer, ReplyBuffer::Frame(_));
    let answer = exchange.fs().read(exchange.cx, file, offset, sink);
    exchange.close(answer, move |completion, done| {
        let len = done.count.min(len_max);
        if in_frame {
            completion.send_data(len, |data| Reply::Read(Returned::Inline(data), done.eof));
        } else {
            let data = Returned::Placed { len_bytes: wire_len(len) };
            completion.send(&Reply::Read(data, done.eof));
        }
    });
}

pub(super) fn write(mut exchange: Exchange<'_>, file: File, how: Write, data: &Data<'_>) {
    if data.len_bytes() > exchange.shared.options.transfer_bytes_max {
        return exchange.cut(too_much());
    }
    let source = or_cut!(exchange, buffers::source(data, &mut exchange.parts, &exchange.responder));
    let answer = exchange.fs().write(exchange.cx, file, &how, source);
    exchange.answer(answer, Reply::Written);
}

fn too_much() -> ProtocolError {
    ProtocolError::Malformed("more data than one request may transfer".into())
}
