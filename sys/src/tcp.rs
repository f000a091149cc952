//! Nonblocking TCP streams.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt::{
    set_ipv6_v6only, set_socket_keepalive, set_socket_linger, set_socket_reuseaddr, set_tcp_keepidle,
    set_tcp_nodelay, socket_error,
};
use rustix::net::{
    AddressFamily, Shutdown, SocketFlags, SocketType, acceptfrom_with, bind as bind_to,
    connect as start_connecting, getpeername, getsockname, listen as start_listening, shutdown, socket_with,
};
use smallvec::SmallVec;
use tombolo_mem::Sink;

use crate::errno::{Errno, Result, check, retry};
use crate::gather::{Gather, SPANS_MAX};

/// Returns a socket bound to `address`, which refuses connections until it [`listen`]s; port 0 selects a free
/// port. An IPv6 socket at the unspecified address also accepts IPv4 connections. EADDRINUSE if another
/// socket listens there.
pub fn bind(address: SocketAddr) -> Result<OwnedFd> {
    bound(address, SocketType::STREAM)
}

/// Starts listening with this backlog. EADDRINUSE if another socket bound to the same address listens
/// already.
pub fn listen(socket: impl AsFd, backlog: i32) -> Result<()> {
    start_listening(socket, backlog)
}

/// Starts to connect to `address`, from a given port or any, without blocking. The stream becomes writable
/// once it is connected or has failed; [`connected`] returns the result. EACCES if the port is reserved,
/// EADDRINUSE or EADDRNOTAVAIL if it is in use; any other error that occurs at once is returned too.
pub fn connect(address: SocketAddr, from_port: Option<u16>) -> Result<OwnedFd> {
    connecting(address, from_port, SocketType::STREAM)
}

/// Succeeds once the stream is connected. Returns the error if connecting has failed, once only, and EAGAIN
/// while in progress.
pub fn connected(stream: impl AsFd) -> Result<()> {
    socket_error(&stream)??;
    match getpeername(&stream) {
        Ok(_) => Ok(()),
        Err(Errno::NOTCONN) => Err(Errno::AGAIN),
        Err(error) => Err(error),
    }
}

/// Returns the address that a socket is bound to.
pub fn local_address(socket: impl AsFd) -> Result<SocketAddr> {
    let address = getsockname(socket)?;
    SocketAddr::try_from(address).map_err(|_| Errno::AFNOSUPPORT)
}

/// Accepts the next connection as a nonblocking stream. EAGAIN if there is none; EMFILE, ENFILE, ENOBUFS and
/// ENOMEM if the system's resources are exhausted, and the connection stays queued; ECONNABORTED if the peer
/// has left.
pub fn accept(listener: BorrowedFd<'_>) -> Result<(OwnedFd, SocketAddr)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (stream, address) = retry(|| acceptfrom_with(listener, flags))?;
    let address = address.and_then(|address| SocketAddr::try_from(address).ok());
    Ok((stream, canonical(address.ok_or(Errno::CONNABORTED)?)))
}

/// Disables Nagle's algorithm, and enables keepalive probes after `silence`.
pub fn tune(stream: impl AsFd, silence: Duration) -> Result<()> {
    set_tcp_nodelay(&stream, true)?;
    set_socket_keepalive(&stream, true)?;
    set_tcp_keepidle(&stream, silence)
}

/// Makes closing the stream abort it: unsent data are dropped, the peer gets a reset, and the address is
/// reusable at once.
pub fn abort_on_close(stream: impl AsFd) -> Result<()> {
    set_socket_linger(stream, Some(Duration::ZERO))
}

/// Makes the stream readable only once this number of bytes has arrived, at its end, or when the buffer is
/// full. Receiving still returns all bytes that were received.
pub fn set_low_watermark(stream: impl AsFd, bytes: usize) -> Result<()> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    set_option(stream.as_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes)
}

/// Receives into the sinks, in order. Returns the number of bytes received, 0 only at the end of the stream
/// or for empty sinks. EAGAIN if no data were received.
pub fn receive(stream: BorrowedFd<'_>, into: &[&Sink]) -> Result<usize> {
    let mut spans = into.iter().flat_map(|sink| sink.segments());
    let (first, second) = (spans.next(), spans.next());
    let Some(first) = first else { return Ok(0) };
    if second.is_none() {
        return retry(|| {
            // SAFETY: the span is that of a borrowed Sink, which keeps the memory alive; the kernel copies
            // into it, and no Rust reference to those bytes exists.
            let outcome =
                unsafe { libc::recv(stream.as_raw_fd(), first.ptr.cast(), first.len, libc::MSG_DONTWAIT) };
            check(outcome as libc::c_long)
        });
    }
    let mut list: SmallVec<[libc::iovec; 4]> = [first]
        .into_iter()
        .chain(second)
        .chain(spans)
        .take(SPANS_MAX)
        .map(|span| libc::iovec { iov_base: span.ptr.cast(), iov_len: span.len })
        .collect();
    let mut message = message(&mut list);
    retry(|| {
        // SAFETY: the message refers to the list, which outlives the call, and its spans are those of
        // borrowed Sinks.
        let outcome = unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        check(outcome as libc::c_long)
    })
}

/// Sends the beginning of the list. Returns the number of bytes sent. EAGAIN if the buffer is full; EPIPE,
/// without a signal, if the peer has disconnected.
pub fn send(stream: BorrowedFd<'_>, gather: &mut Gather<'_>) -> Result<usize> {
    let message = message(&mut gather.spans);
    retry(|| {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the message refers to the list's spans, whose contents the list borrows; the kernel only
        // reads.
        check(unsafe { libc::sendmsg(stream.as_raw_fd(), &raw const message, flags) } as libc::c_long)
    })
}

/// Shuts down the sending direction: the peer reads the end of the stream behind the data sent so far.
pub fn end_sending(stream: impl AsFd) -> Result<()> {
    retry(|| shutdown(&stream, Shutdown::Write))
}

/// Sets a socket option whose value is an integer.
pub(crate) fn set_option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> Result<()> {
    let value_bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value is an int that lives through the call, and its length is passed.
    let outcome = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), value_bytes)
    };
    check(outcome.into()).map(|_| ())
}

/// Returns a message of these spans, without an address.
pub(crate) fn message(spans: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: all zero bytes is a valid `msghdr`: without spans, address and control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = spans.as_mut_ptr();
    message.msg_iovlen = spans.len() as _;
    message
}

/// Returns a nonblocking socket bound to the address.
pub(crate) fn bound(address: SocketAddr, kind: SocketType) -> Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    if kind == SocketType::STREAM {
        // Without this option a server could not restart while connections of its predecessor are in
        // TIME_WAIT.
        set_socket_reuseaddr(&socket, true)?;
    }
    if address.is_ipv6() {
        set_ipv6_v6only(&socket, address.ip() != Ipv6Addr::UNSPECIFIED)?;
    }
    bind_to(&socket, &address)?;
    Ok(socket)
}

/// Returns a nonblocking socket that is connecting or connected to the address.
pub(crate) fn connecting(address: SocketAddr, from_port: Option<u16>, kind: SocketType) -> Result<OwnedFd> {
    let (family, any) = match address {
        SocketAddr::V4(_) => (AddressFamily::INET, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))),
        SocketAddr::V6(_) => (AddressFamily::INET6, SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))),
    };
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    if let Some(port) = from_port {
        if kind == SocketType::STREAM {
            // This option allows the reuse of a port whose last connection is in TIME_WAIT.
            set_socket_reuseaddr(&socket, true)?;
        }
        bind_to(&socket, &SocketAddr::new(any.ip(), port))?;
    }
    match start_connecting(&socket, &address) {
        // A signal does not abort the attempt.
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// Converts IPv4-mapped IPv6 addresses to IPv4 addresses.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) if v6.ip().to_ipv4_mapped().is_some() => {
            SocketAddr::new(address.ip().to_canonical(), v6.port())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpStream};

    use tombolo_mem::{Buffer, Source};

    use super::*;

    fn any_port() -> SocketAddr {
        (Ipv4Addr::LOCALHOST, 0).into()
    }

    fn listener(address: SocketAddr) -> Result<OwnedFd> {
        let socket = bind(address)?;
        listen(&socket, 8)?;
        Ok(socket)
    }

    fn pair() -> (OwnedFd, TcpStream) {
        let listener = listener(any_port()).expect("listen");
        let client = TcpStream::connect(local_address(&listener).expect("address")).expect("connect");
        let (stream, from) = accept(listener.as_fd()).expect("accept");
        assert_eq!(from, client.local_addr().expect("address"));
        tune(&stream, Duration::from_secs(60)).expect("tune");
        (stream, client)
    }

    fn outcome_of_connecting(address: SocketAddr) -> Result<()> {
        let end = std::time::Instant::now() + Duration::from_secs(10);
        let stream = connect(address, None)?;
        loop {
            match connected(&stream) {
                Err(Errno::AGAIN) if std::time::Instant::now() < end => std::thread::yield_now(),
                outcome => return outcome,
            }
        }
    }

    #[test]
    fn gathered_segments_arrive_in_order() {
        let (stream, mut client) = pair();
        let data = Source::from(b"cdef".to_vec());
        let mut gather = Gather::new(1);
        gather.bytes(b"ab");
        gather.source(&data);
        gather.bytes(b"g");
        assert_eq!(send(stream.as_fd(), &mut gather), Ok(6));
        end_sending(&stream).expect("end");
        let mut all = String::new();
        client.read_to_string(&mut all).expect("read");
        assert_eq!(all, "bcdefg");
    }

    #[test]
    fn connect_is_nonblocking_and_reports_outcome() {
        let listener = listener(any_port()).expect("listen");
        let address = local_address(&listener).expect("address");
        assert_eq!(outcome_of_connecting(address), Ok(()));
        drop(listener);
        assert_eq!(outcome_of_connecting(address), Err(Errno::CONNREFUSED));
    }

    #[test]
    fn bound_port_refuses_connections_until_listening() {
        let socket = bind(any_port()).expect("bind");
        let address = local_address(&socket).expect("address");
        assert_eq!(outcome_of_connecting(address), Err(Errno::CONNREFUSED));
        listen(&socket, 8).expect("listen");
        assert_eq!(outcome_of_connecting(address), Ok(()));
        assert_eq!(bind(address).err(), Some(Errno::ADDRINUSE));
    }

    #[test]
    fn connect_uses_the_given_source_port() {
        let listener = listener(any_port()).expect("listen");
        let address = local_address(&listener).expect("address");
        let free = local_address(bind(any_port()).expect("bind")).expect("address").port();
        let _stream = connect(address, Some(free)).expect("connect");
        let (_accepted, from) = accept(listener.as_fd()).expect("accept");
        assert_eq!(from.port(), free);
        assert_eq!(connect(address, Some(address.port())).err(), Some(Errno::ADDRINUSE));
    }

    #[test]
    fn a_stream_that_is_forgotten_leaves_its_port() {
        let listener = listener(any_port()).expect("listen");
        let address = local_address(&listener).expect("address");
        // The port is free for a moment, in which another program could take it, though hardly each time.
        let is_free_at_once = |_| {
            let first = connect(address, None).expect("connect");
            let port = local_address(&first).expect("address").port();
            let _accepted = accept(listener.as_fd()).expect("accept");
            abort_on_close(&first).expect("set");
            crate::socket::shut_down(&first).expect("shut down");
            drop(first);
            connect(address, Some(port)).is_ok_and(|second| connected(&second) == Ok(()))
        };
        assert!((0..20).any(is_free_at_once));
    }

    #[test]
    fn received_bytes_fill_sinks_in_order() {
        let (stream, mut client) = pair();
        let (mut first, mut second) = (Buffer::new(3), Buffer::new(10));
        let receive_once = |first: &Buffer, second: &Buffer| {
            receive(stream.as_fd(), &[&first.sink(0..3), &second.sink(0..10)])
        };
        assert_eq!(receive_once(&first, &second), Err(Errno::AGAIN));
        client.write_all(b"abcdef").expect("write");
        assert_eq!(receive_once(&first, &second), Ok(6));
        assert_eq!(first.as_slice().expect("ours"), b"abc");
        assert_eq!(&second.as_slice().expect("ours")[..4], b"def\0");
        client.write_all(b"xy").expect("write");
        assert_eq!(receive(stream.as_fd(), &[&first.sink(0..3)]), Ok(2));
        drop(client);
        assert_eq!(receive(stream.as_fd(), &[&first.sink(0..3)]), Ok(0));
        assert_eq!(receive(stream.as_fd(), &[]), Ok(0));
    }

    #[test]
    fn receive_accepts_more_spans_than_iov_max() {
        let (stream, mut client) = pair();
        let (buffer, mut scattered) = (Buffer::new(4000), Sink::new());
        (0..2000).for_each(|place| scattered.append(buffer.sink(2 * place..2 * place + 1)));
        client.write_all(&[7; 2000]).expect("write");
        let mut received = 0;
        while received < 2000 {
            let mut rest = scattered.clone();
            rest.advance(received);
            received += receive(stream.as_fd(), &[&rest]).expect("receive");
        }
        assert_eq!(buffer.source(3998..3999).to_vec(1), [7]);
    }

    #[test]
    fn receive_low_watermark_delays_readability() {
        let (stream, mut client) = pair();
        let epoll = crate::epoll::Epoll::new().expect("epoll");
        epoll.add(&stream, 1, crate::epoll::Interest::Readable).expect("add");
        let mut events = Vec::new();
        set_low_watermark(&stream, 1000).expect("set");
        client.write_all(&[1; 999]).expect("write");
        epoll.wait(&mut events, Some(Duration::from_millis(20))).expect("wait");
        assert_eq!(events, []);
        client.write_all(&[1; 1]).expect("write");
        epoll.wait(&mut events, Some(Duration::from_secs(10))).expect("wait");
        assert_eq!(events.len(), 1);
        let buffer = Buffer::new(999);
        assert_eq!(receive(stream.as_fd(), &[&buffer.sink(0..999)]), Ok(999));
        drop(client);
        epoll.wait(&mut events, Some(Duration::from_secs(10))).expect("wait");
        assert!(events.iter().any(|event| event.readable), "its end is always told");
    }

    #[test]
    fn calls_neither_block_nor_raise_sigpipe() {
        let listener = listener(any_port()).expect("listen");
        assert_eq!(accept(listener.as_fd()).err(), Some(Errno::AGAIN));
        let (stream, client) = pair();
        let much = vec![0; 1 << 20];
        let outcome = std::iter::repeat_with(|| {
            let mut gather = Gather::new(0);
            gather.bytes(&much);
            send(stream.as_fd(), &mut gather)
        })
        .find(Result::is_err);
        assert_eq!(outcome, Some(Err(Errno::AGAIN)));
        drop(client);
        let mut gather = Gather::new(0);
        gather.bytes(b"x");
        let outcome = send(stream.as_fd(), &mut gather);
        assert!(matches!(outcome, Err(Errno::PIPE | Errno::CONNRESET)), "{outcome:?}");
    }

    #[test]
    fn ipv4_callers_of_an_ipv6_socket_have_ipv4_addresses() {
        let listener = match listener((Ipv6Addr::UNSPECIFIED, 0).into()) {
            Ok(listener) => listener,
            Err(Errno::AFNOSUPPORT) => tombolo_skip::skip!("this kernel has no IPv6"),
            Err(error) => panic!("{error}"),
        };
        let port = local_address(&listener).expect("address").port();
        let _client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("connect");
        let (_stream, from) = accept(listener.as_fd()).expect("accept");
        assert!(from.is_ipv4(), "{from}");
    }
}
