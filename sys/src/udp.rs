//! Nonblocking UDP sockets that reply from the address to which a datagram was sent.

use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::addr::{SocketAddrArg, SocketAddrStorage};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use rustix::net::{SocketAddrAny, SocketType};
use smallvec::SmallVec;
use tombolo_mem::Sink;

use crate::errno::{Errno, Result, check, retry};
use crate::gather::Gather;
use crate::tcp;

/// Maximum length of a datagram over IPv4, in bytes: 65,535 minus the headers of IP and UDP.
pub const DATAGRAM_MAX_BYTES: usize = 65_507;

/// Requested size of a socket's kernel buffers, in bytes; limited by the system.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// The addresses of a received datagram, for the reply.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// Sender, in the socket's family.
    peer: SocketAddr,
    local: Option<Local>,
}

/// The local address to which a datagram was sent, in the kernel's format.
#[derive(Clone, Copy)]
enum Local {
    V4(libc::in_pktinfo),
    V6(libc::in6_pktinfo),
}

impl Route {
    /// Returns the sender of the datagram. IPv4-mapped addresses are returned as IPv4.
    pub fn peer(&self) -> SocketAddr {
        tcp::canonical(self.peer)
    }
}

/// Returns a socket bound to `address`; port 0 selects a free port. At the unspecified address the kernel
/// reports the local address of each datagram, and an IPv6 socket also accepts IPv4 datagrams.
pub fn bind(address: SocketAddr) -> Result<OwnedFd> {
    let socket = tcp::bound(address, SocketType::DGRAM)?;
    match address.ip() {
        ip if !ip.is_unspecified() => {}
        IpAddr::V4(_) => switch_on(socket.as_fd(), libc::IPPROTO_IP, libc::IP_PKTINFO)?,
        IpAddr::V6(_) => switch_on(socket.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO)?,
    }
    set_socket_recv_buffer_size(&socket, SOCKET_BUFFER_BYTES)?;
    set_socket_send_buffer_size(&socket, SOCKET_BUFFER_BYTES)?;
    Ok(socket)
}

/// Returns a socket connected to one peer, from a given port or any, for use with [`tcp::receive`] and
/// [`tcp::send`]. Their errors may relate to an earlier datagram: ECONNREFUSED if nothing listens at the
/// peer.
pub fn connect(address: SocketAddr, from_port: Option<u16>) -> Result<OwnedFd> {
    let socket = tcp::connecting(address, from_port, SocketType::DGRAM)?;
    set_socket_recv_buffer_size(&socket, SOCKET_BUFFER_BYTES)?;
    set_socket_send_buffer_size(&socket, SOCKET_BUFFER_BYTES)?;
    Ok(socket)
}

/// Receives a datagram. Returns its length and its addresses. Excess bytes are lost. EAGAIN if no datagram
/// was received.
pub fn receive(socket: BorrowedFd<'_>, into: &Sink) -> Result<(usize, Route)> {
    let mut list: SmallVec<[libc::iovec; 4]> = into
        .segments()
        .map(|segment| libc::iovec { iov_base: segment.ptr.cast(), iov_len: segment.len })
        .collect();
    let mut name = MaybeUninit::<SocketAddrStorage>::zeroed();
    let mut control = Control::default();
    let mut message = tcp::message(&mut list);
    message.msg_name = name.as_mut_ptr().cast();
    message.msg_namelen = size_of::<SocketAddrStorage>() as libc::socklen_t;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = size_of::<Control>() as _;
    let received = retry(|| {
        // SAFETY: name, control and list outlive the call and have the lengths in the message; the list's
        // spans are those of a borrowed Sink, so the memory is alive, and no Rust reference to those bytes
        // exists.
        let outcome = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        check(outcome as libc::c_long)
    })?;
    // SAFETY: the kernel wrote an address of that length, cut to the size of the storage; the other bytes are
    // zero.
    let peer = unsafe { SocketAddrAny::new(name, message.msg_namelen) };
    let peer = SocketAddr::try_from(peer).map_err(|_| Errno::AFNOSUPPORT)?;
    Ok((received, Route { peer, local: local(&message) }))
}

/// Sends the list as one datagram, in reply to the datagram of `route`. EAGAIN if the buffer is full,
/// EMSGSIZE if the datagram is too long; other errors may relate to an earlier datagram.
pub fn send(socket: BorrowedFd<'_>, gather: &mut Gather<'_>, route: &Route) -> Result<usize> {
    let mut name = route.peer.as_any();
    let mut control = Control::default();
    let mut message = tcp::message(&mut gather.spans);
    message.msg_name = name.as_mut_ptr().cast();
    message.msg_namelen = name.addr_len();
    match route.local {
        None => {}
        Some(Local::V4(info)) => control.put(&mut message, libc::IPPROTO_IP, libc::IP_PKTINFO, info),
        Some(Local::V6(info)) => control.put(&mut message, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info),
    }
    retry(|| {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: name and control outlive the call and have the lengths in the message; the list borrows the
        // contents of its spans; the kernel only reads.
        check(unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) } as libc::c_long)
    })
}

/// A buffer for one control message with the local address of a datagram, of IPv4 or IPv6, aligned as
/// control messages require.
#[derive(Default)]
struct Control([u64; 8]);

impl Control {
    /// Makes the value the message's only control message.
    fn put<T: Copy>(&mut self, message: &mut libc::msghdr, level: libc::c_int, kind: libc::c_int, value: T) {
        const { assert!(size_of::<libc::cmsghdr>() + size_of::<libc::in6_pktinfo>() <= 64) };
        let length = size_of::<T>() as libc::c_uint;
        message.msg_control = self.0.as_mut_ptr().cast();
        // SAFETY: pure arithmetic on a length.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(length) } as _;
        // SAFETY: the message's control buffer has space for a header, so this is its first one, aligned.
        let header = unsafe { libc::CMSG_FIRSTHDR(message) };
        // SAFETY: pure arithmetic on a length.
        let cmsg_len = unsafe { libc::CMSG_LEN(length) } as _;
        // SAFETY: `header` points to the zeroed buffer, which is ours alone.
        unsafe { *header = libc::cmsghdr { cmsg_len, cmsg_level: level, cmsg_type: kind } };
        // SAFETY: the data follow the header in the same buffer.
        let data = unsafe { libc::CMSG_DATA(header) };
        // SAFETY: the buffer has space for a header and the longest value (asserted above).
        unsafe { data.cast::<T>().write_unaligned(value) };
    }
}

/// Returns the local address of the datagram, if the kernel reported it.
fn local(message: &libc::msghdr) -> Option<Local> {
    // SAFETY: the kernel filled the message's control buffer and set its length.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: not null, so a whole header within the control buffer.
        let found = unsafe { *header };
        // SAFETY: `header` is a complete control message in the message's control buffer; the data follow the
        // header.
        let data = unsafe { libc::CMSG_DATA(header) };
        match (found.cmsg_level, found.cmsg_type) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                // SAFETY: a control message of this kind has this content (ip(7)).
                let mut info = unsafe { data.cast::<libc::in_pktinfo>().read_unaligned() };
                // Replies are routed normally rather than by the interface of the request: the peer checks
                // the address only.
                info.ipi_ifindex = 0;
                return Some(Local::V4(info));
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                // SAFETY: a control message of this kind has this content (ipv6(7)).
                let mut info = unsafe { data.cast::<libc::in6_pktinfo>().read_unaligned() };
                // A link-local address is meaningless without its interface.
                if info.ipi6_addr.s6_addr[..2] != [0xfe, 0x80] {
                    info.ipi6_ifindex = 0;
                }
                return Some(Local::V6(info));
            }
            _ => {}
        }
        // SAFETY: `header` is in the message's control buffer.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    None
}

fn switch_on(socket: BorrowedFd<'_>, level: libc::c_int, option: libc::c_int) -> Result<()> {
    tcp::set_option(socket, level, option, 1)
}

impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let address: IpAddr = match self {
            // The source address of a reply is `ipi_spec_dst`.
            Local::V4(info) => info.ipi_spec_dst.s_addr.to_ne_bytes().into(),
            Local::V6(info) => info.ipi6_addr.s6_addr.into(),
        };
        address.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
    use std::time::{Duration, Instant};

    use tombolo_mem::{Buffer, Source};

    use super::*;

    /// Receives one datagram, waiting for it.
    fn received(socket: &OwnedFd, into: &Sink) -> (usize, Route) {
        awaited(|| receive(socket.as_fd(), into)).expect("a datagram")
    }

    /// Receives with retries, because the kernel may deliver with a delay.
    fn awaited<T>(mut receive: impl FnMut() -> Result<T>) -> Result<T> {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            match receive() {
                Err(Errno::AGAIN) if Instant::now() < end => std::thread::yield_now(),
                outcome => return outcome,
            }
        }
    }

    /// Sends a datagram from a client to `to` and back. Returns the source address of the reply.
    fn round_trip(socket: &OwnedFd, client: &UdpSocket, to: SocketAddr) -> SocketAddr {
        client.send_to(b"hello", to).expect("send");
        let mut buffer = Buffer::new(100);
        let (length, route) = received(socket, &buffer.sink(0..100));
        assert_eq!(&buffer.as_slice().expect("ours")[..length], b"hello");
        assert_eq!(route.peer().port(), client.local_addr().expect("address").port());
        let data = Source::from(b"lo".to_vec());
        let mut gather = Gather::new(0);
        gather.bytes(b"hel");
        gather.source(&data);
        assert_eq!(send(socket.as_fd(), &mut gather, &route), Ok(5));
        let mut answer = [0; 10];
        let (length, from) = client.recv_from(&mut answer).expect("receive");
        assert_eq!(&answer[..length], b"hello");
        from
    }

    fn client(address: IpAddr) -> UdpSocket {
        let client = UdpSocket::bind((address, 0)).expect("bind");
        client.set_read_timeout(Some(Duration::from_secs(10))).expect("timeout");
        client
    }

    #[test]
    fn udp_reply_uses_the_requested_address() {
        let socket = bind((Ipv4Addr::UNSPECIFIED, 0).into()).expect("bind");
        let port = tcp::local_address(&socket).expect("address").port();
        let client = client(Ipv4Addr::LOCALHOST.into());
        for last in [1, 2, 99] {
            let to = (Ipv4Addr::new(127, 0, 0, last), port).into();
            assert_eq!(round_trip(&socket, &client, to), to);
        }
        assert!(matches!(receive(socket.as_fd(), &Buffer::new(1).sink(0..1)), Err(Errno::AGAIN)));
    }

    #[test]
    fn an_ipv6_socket_serves_both() {
        let socket = match bind((Ipv6Addr::UNSPECIFIED, 0).into()) {
            Ok(socket) => socket,
            Err(Errno::AFNOSUPPORT) => tombolo_skip::skip!("this kernel has no IPv6"),
            Err(error) => panic!("{error}"),
        };
        let port = tcp::local_address(&socket).expect("address").port();
        let to = (Ipv4Addr::new(127, 0, 0, 7), port).into();
        assert_eq!(round_trip(&socket, &client(Ipv4Addr::LOCALHOST.into()), to), to);
        match UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)) {
            Ok(_) => {
                let to = (Ipv6Addr::LOCALHOST, port).into();
                assert_eq!(round_trip(&socket, &client(Ipv6Addr::LOCALHOST.into()), to), to);
            }
            Err(error) => eprintln!("without ::1: {error}"),
        }
    }

    #[test]
    fn connected_udp_socket_receives_from_its_peer_only() {
        let server = bind((Ipv4Addr::LOCALHOST, 0).into()).expect("bind");
        let address = tcp::local_address(&server).expect("address");
        let ours = connect(address, None).expect("connect");
        let mut gather = Gather::new(0);
        gather.bytes(b"ping");
        assert_eq!(tcp::send(ours.as_fd(), &mut gather), Ok(4));
        let buffer = tombolo_mem::Buffer::new(16);
        let (bytes, route) = received(&server, &buffer.sink(0..16));
        assert_eq!((bytes, route.peer()), (4, tcp::local_address(&ours).expect("address")));
        client(Ipv4Addr::LOCALHOST.into()).send_to(b"stranger", route.peer()).expect("send");
        assert_eq!(tcp::receive(ours.as_fd(), &[&buffer.sink(0..16)]), Err(Errno::AGAIN));
        send(server.as_fd(), &mut gather, &route).expect("send");
        let into = buffer.sink(0..16);
        assert_eq!(awaited(|| tcp::receive(ours.as_fd(), &[&into])), Ok(4));
        // It now receives from another peer, and its port is unchanged.
        rustix::net::connect(&server, &SocketAddr::from((Ipv4Addr::LOCALHOST, 9))).expect("connect");
        assert_eq!(tcp::send(ours.as_fd(), &mut gather), Ok(4));
        assert_eq!(awaited(|| tcp::receive(ours.as_fd(), &[&into])), Err(Errno::CONNREFUSED));
    }

    #[test]
    fn bound_udp_socket_replies_from_its_address() {
        let socket = bind((Ipv4Addr::new(127, 0, 0, 5), 0).into()).expect("bind");
        let to = tcp::local_address(&socket).expect("address");
        assert_eq!(round_trip(&socket, &client(Ipv4Addr::LOCALHOST.into()), to), to);
    }

    #[test]
    fn data_too_long_for_a_datagram_are_refused() {
        let socket = bind((Ipv4Addr::LOCALHOST, 0).into()).expect("bind");
        let long = vec![0; DATAGRAM_MAX_BYTES + 1];
        let mut gather = Gather::new(0);
        gather.bytes(&long);
        let route = Route { peer: tcp::local_address(&socket).expect("address"), local: None };
        assert_eq!(send(socket.as_fd(), &mut gather, &route), Err(Errno::MSGSIZE));
    }
}
