//! Replies, written to memory that the client reads.

use tombolo_mem::Sink;

use super::message::{FRAME_MAX, Part, ReplyMessage, SHORT_DATA_BYTES};
use crate::server::{Exchange, Outcome};
use tombolo_host_links::ProtocolError;
use tombolo_host_links::server::Responder;

/// Ends a call with the service's result.
pub(super) fn respond(
    responder: Responder,
    exchange: &mut Exchange,
    outcome: Outcome,
    reply_buffer: Option<Part>,
) {
    match outcome {
        Outcome::Reply => send(responder, exchange, reply_buffer),
        Outcome::Silent => send_message(responder, ReplyMessage::Silence, &[]),
        Outcome::Close => responder.cut(ProtocolError::Malformed("malformed RPC call".into())),
    }
}

fn send_message(responder: Responder, message: ReplyMessage, frame: &[u8]) {
    let (kind, body) = message.encode();
    responder.send(kind, body, frame);
}

fn send(responder: Responder, exchange: &mut Exchange, reply_buffer: Option<Part>) {
    let data = exchange.data.take().filter(|data| !data.source.is_empty());
    let data_bytes = data.as_ref().map_or(0, |data| data.source.len());
    let padded_bytes = data_bytes.next_multiple_of(4);
    let buffer_bytes = reply_buffer.map_or(0, |reply_buffer| reply_buffer.len_bytes as usize);
    let reply = &mut exchange.reply;
    let fits = reply.len() + padded_bytes <= FRAME_MAX;
    if fits && (data_bytes <= SHORT_DATA_BYTES || padded_bytes > buffer_bytes) {
        let head_bytes = reply.len();
        reply.resize(head_bytes + padded_bytes, 0);
        if let (Some(data), Some(rest)) = (&data, reply.get_mut(head_bytes..head_bytes + data_bytes)) {
            data.source.read_at(0, rest);
        }
        return send_message(responder, ReplyMessage::Reply { placed_bytes: 0 }, reply);
    }
    let (frame, rest) = reply.split_at(reply.len().min(FRAME_MAX));
    let placed = rest.len() + padded_bytes;
    // No reply approaches 4 GiB.
    let placed_bytes = u32::try_from(placed).unwrap_or(u32::MAX);
    if placed > buffer_bytes {
        return send_message(responder, ReplyMessage::BufferTooSmall { needed_bytes: placed_bytes }, &[]);
    }
    let sink = reply_buffer
        .map(|reply_buffer| responder.sink(reply_buffer.address, u64::from(reply_buffer.len_bytes)));
    let mut sink = match sink {
        Some(Ok(sink)) => sink,
        Some(Err(error)) => return responder.cut(error),
        None => Sink::new(),
    };
    sink.write_at(0, rest);
    sink.advance(rest.len());
    if let Some(data) = &data {
        data.source.copy_to_sink(&sink);
        sink.zero(data_bytes, padded_bytes - data_bytes);
    }
    send_message(responder, ReplyMessage::Reply { placed_bytes }, frame);
}
