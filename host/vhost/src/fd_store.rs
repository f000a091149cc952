//! Store of descriptors that a server leaves with its keeper for the next server: both ends and their
//! protocol.
//!
//! A sent message and its descriptor belong to the keeper even if the sender dies; so the server does not
//! wait for replies.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::Shutdown;
use tombolo_host_runtime::descriptors::{Permit, Share};
use tombolo_host_runtime::lock;
use tombolo_sys::{Errno, packet};

/// Key of a stored descriptor: a number chosen by the device, and optionally an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FdKey {
    /// The device's number of the object to which the descriptor belongs.
    pub number: u64,
    /// The device's number of an owner of that object, if each owner has a descriptor.
    pub owner: Option<u64>,
}

/// A message in either direction; numbers are little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    /// From the server: stores the attached descriptor. From the keeper: hands a stored one over.
    Keep(FdKey),
    /// Releases a descriptor.
    Drop(FdKey),
    /// Releases all descriptors.
    Clear,
    /// Ends the hand-over of stored descriptors.
    End,
}

const MESSAGE_LEN: usize = 18;

impl Message {
    fn encode(self) -> [u8; MESSAGE_LEN] {
        let (kind, key) = match self {
            Self::Keep(key) => (1, Some(key)),
            Self::Drop(key) => (2, Some(key)),
            Self::Clear => (3, None),
            Self::End => (4, None),
        };
        let key = key.unwrap_or(FdKey { number: 0, owner: None });
        let mut bytes = [0; MESSAGE_LEN];
        let fields = [kind, u8::from(key.owner.is_some())].into_iter();
        let numbers = [key.number, key.owner.unwrap_or_default()];
        let fields = fields.chain(numbers.into_iter().flat_map(u64::to_le_bytes));
        bytes.iter_mut().zip(fields).for_each(|(place, byte)| *place = byte);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (&[kind, has_owner], rest) = bytes.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let owner = u64::from_le_bytes(rest.try_into().ok()?);
        let key = FdKey { number: u64::from_le_bytes(*number), owner: (has_owner == 1).then_some(owner) };
        match kind {
            1 => Some(Self::Keep(key)),
            2 => Some(Self::Drop(key)),
            3 => Some(Self::Clear),
            4 => Some(Self::End),
            _ => None,
        }
    }
}

/// Time limit for sending to a keeper that does not receive.
const SEND_TIMEOUT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

fn send(
    socket: &OwnedFd,
    message: Message,
    descriptor: Option<BorrowedFd<'_>>,
    timeout: Option<&Timespec>,
) -> io::Result<()> {
    loop {
        match packet::send(socket, &message.encode(), descriptor.as_slice()) {
            Err(Errno::AGAIN) => {}
            outcome => return Ok(outcome?),
        }
        let mut sockets = [PollFd::new(socket, PollFlags::OUT)];
        if poll(&mut sockets, timeout)? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

/// Receives the next message; `None` if the peer has closed the socket or sent an invalid message.
fn receive(socket: &OwnedFd) -> io::Result<Option<(Message, Option<OwnedFd>)>> {
    let mut bytes = [0; MESSAGE_LEN];
    loop {
        packet::wait(socket)?;
        match packet::receive(socket, &mut bytes) {
            Err(Errno::AGAIN) => {}
            Err(Errno::CONNRESET) => return Ok(None),
            outcome => {
                let packet = outcome?;
                let message = bytes.get(..packet.len).and_then(Message::decode);
                return Ok(message.map(|message| (message, packet.descriptors.into_iter().next())));
            }
        }
    }
}

/// The server's end of the store.
#[derive(Debug)]
pub struct FdStore {
    socket: OwnedFd,
    stored: Mutex<Vec<(FdKey, OwnedFd)>>,
    /// Messages that could not be sent in time; they precede any other. At most one for each stored
    /// descriptor.
    unsent: Mutex<VecDeque<Message>>,
}

impl FdStore {
    /// Connects to the store at `socket` and receives the stored descriptors.
    ///
    /// # Errors
    /// Errors of the socket.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        let mut stored = Vec::new();
        loop {
            match receive(&socket)? {
                Some((Message::Keep(key), Some(descriptor))) => stored.push((key, descriptor)),
                Some((Message::End, _)) => break,
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        Ok(Self { socket, stored: Mutex::new(stored), unsent: Mutex::default() })
    }

    /// Receives the store's socket, which the keeper sends first on each connection.
    pub(crate) fn begin(stream: &UnixStream) -> io::Result<Self> {
        let packet = loop {
            match packet::receive(stream, &mut [0; GREETING.len()]) {
                Err(Errno::AGAIN) => packet::wait(stream)?,
                outcome => break outcome?,
            }
        };
        Self::new(packet.descriptors.into_iter().next().ok_or(io::ErrorKind::UnexpectedEof)?)
    }

    /// Takes the descriptors that an earlier server left.
    pub fn take_stored(&self) -> Vec<(FdKey, OwnedFd)> {
        mem::take(&mut lock(&self.stored))
    }

    /// Stores a duplicate of a descriptor, replacing one with the same key. After success the descriptor
    /// outlives this process, unless the keeper's share of descriptors is exhausted. Waits for at most one
    /// second to send each message: this one, and releases not sent before.
    ///
    /// # Errors
    /// The keeper has ended, or does not receive.
    pub fn put(&self, key: FdKey, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.send_unsent(&mut lock(&self.unsent))?;
        send(&self.socket, Message::Keep(key), Some(descriptor), Some(&SEND_TIMEOUT))
    }

    /// Releases a descriptor. Waits for at most one second to send each message; a release not sent by then
    /// precedes the next message.
    pub fn release(&self, key: FdKey) {
        let mut unsent = lock(&self.unsent);
        unsent.push_back(Message::Drop(key));
        // If the keeper ends, this process ends too.
        let _ = self.send_unsent(&mut unsent);
    }

    /// Releases all descriptors.
    pub fn clear(&self) {
        let mut unsent = lock(&self.unsent);
        *unsent = VecDeque::from([Message::Clear]);
        let _ = self.send_unsent(&mut unsent);
    }

    fn send_unsent(&self, unsent: &mut VecDeque<Message>) -> io::Result<()> {
        while let Some(message) = unsent.front() {
            send(&self.socket, *message, None, Some(&SEND_TIMEOUT))?;
            unsent.pop_front();
        }
        Ok(())
    }
}

/// First packet on a connection, with the store's socket attached.
const GREETING: &[u8] = &[0];

/// The keeper's end of the store, for one guest.
#[derive(Debug)]
pub(crate) struct DescriptorStore {
    stored: Arc<Mutex<BTreeMap<FdKey, StoredFd>>>,
    share: Arc<Share>,
    /// The keeper's socket and the thread that receives from it; `None` before the first server.
    receiver: Option<(OwnedFd, JoinHandle<()>)>,
}

#[derive(Debug)]
struct StoredFd {
    descriptor: OwnedFd,
    permit: Permit,
}

/// A descriptor to be closed, and the permit released after it; `None` if the descriptor had no permit or its
/// replacement has taken the permit over.
type Closing = (OwnedFd, Option<Permit>);

impl DescriptorStore {
    /// Creates a store for at most as many descriptors as `share` permits.
    pub(crate) fn new(share: Share) -> Self {
        Self { stored: Arc::default(), share: Arc::new(share), receiver: None }
    }

    /// Hands the stored descriptors over to the next server, after handling the last messages of the previous
    /// one, which is dead.
    pub(crate) fn greet(&mut self, server: &UnixStream) -> io::Result<()> {
        if let Some((socket, receiver)) = self.receiver.take() {
            // Messages already in the socket are still received.
            let _ = rustix::net::shutdown(socket, Shutdown::Both);
            // A panic has been reported by the panic hook.
            let _ = receiver.join();
        }
        let (ours, theirs) = packet::pair()?;
        let (second, stored, share) = (ours.try_clone()?, Arc::clone(&self.stored), Arc::clone(&self.share));
        let serve = move || {
            if let Err(error) = serve(&ours, &stored, &share) {
                tracing::warn!(%error, "descriptors of a guest's server are no longer stored");
            }
        };
        let receiver = thread::Builder::new().name("kept-files".into()).spawn(serve)?;
        self.receiver = Some((second, receiver));
        Ok(packet::send(server, GREETING, &[theirs.as_fd()])?)
    }
}

impl Drop for DescriptorStore {
    /// Ends the thread: the guest has left, though the server may still run.
    fn drop(&mut self) {
        if let Some((socket, _)) = self.receiver.take() {
            let _ = rustix::net::shutdown(socket, Shutdown::Both);
        }
    }
}

fn serve(socket: &OwnedFd, stored: &Mutex<BTreeMap<FdKey, StoredFd>>, share: &Share) -> io::Result<()> {
    // The server receives all stored descriptors before it sends anything. There is no time limit, because
    // the server may start slowly.
    for (key, entry) in lock(stored).iter() {
        send(socket, Message::Keep(*key), Some(entry.descriptor.as_fd()), None)?;
    }
    send(socket, Message::End, None, None)?;
    // Closing a descriptor may free or write back a file, which takes time, so another thread does it.
    let (closing, closes) = mpsc::channel::<Closing>();
    let closer = thread::Builder::new().name("closes-kept".into());
    closer.spawn(move || closes.into_iter().for_each(drop))?;
    let mut is_full = false;
    while let Some((message, descriptor)) = receive(socket)? {
        let unneeded = handle(message, descriptor, &mut lock(stored), share, &mut is_full);
        // The receiver lives as long as this sender.
        unneeded.into_iter().for_each(|each| drop(closing.send(each)));
    }
    Ok(())
}

/// Handles a message; returns what is to be closed.
fn handle(
    message: Message,
    descriptor: Option<OwnedFd>,
    stored: &mut BTreeMap<FdKey, StoredFd>,
    share: &Share,
    is_full: &mut bool,
) -> Vec<Closing> {
    let closing = |StoredFd { descriptor, permit }| (descriptor, Some(permit));
    match (message, descriptor) {
        (Message::Keep(key), Some(descriptor)) => match stored.entry(key) {
            Entry::Occupied(mut entry) => {
                vec![(mem::replace(&mut entry.get_mut().descriptor, descriptor), None)]
            }
            Entry::Vacant(place) => {
                if let Some(permit) = share.take(1) {
                    place.insert(StoredFd { descriptor, permit });
                    return Vec::new();
                }
                if !mem::replace(is_full, true) {
                    tracing::warn!(
                        "a guest has too many locked or removed files open: some will not survive a restart of its server"
                    );
                }
                vec![(descriptor, None)]
            }
        },
        (Message::Drop(key), _) => stored.remove(&key).into_iter().map(closing).collect(),
        (Message::Clear, _) => mem::take(stored).into_values().map(closing).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};

    use proptest::prelude::*;
    use tombolo_host_runtime::descriptors::DescriptorBudget;

    use super::*;

    fn next(stored: &mut DescriptorStore) -> FdStore {
        let (keeper, server) = UnixStream::pair().expect("a pair");
        stored.greet(&keeper).expect("said");
        FdStore::begin(&server).expect("a store")
    }

    fn keys(store: &FdStore) -> Vec<(u64, Option<u64>)> {
        store.take_stored().into_iter().map(|(key, _)| (key.number, key.owner)).collect()
    }

    #[test]
    fn stored_descriptors_pass_to_next_server_until_released() {
        let mut stored = DescriptorStore::new(DescriptorBudget::new(1000).share(0).expect("a share"));
        let key = |number, owner| FdKey { number, owner };
        let store = next(&mut stored);
        assert!(keys(&store).is_empty());
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        store.put(key(u64::MAX, None), writer.as_fd()).expect("kept");
        for (number, owner) in [(1, None), (1, Some(0)), (2, Some(u64::MAX))] {
            store.put(key(number, owner), File::open("/dev/null").expect("open").as_fd()).expect("kept");
        }
        store.release(key(1, None));
        drop((store, writer));
        let store = next(&mut stored);
        let mut taken = store.take_stored();
        let (last, descriptor) = taken.pop().expect("the pipe");
        let numbers: Vec<_> = taken.iter().map(|(key, _)| (key.number, key.owner)).collect();
        assert_eq!((numbers, last), (vec![(1, Some(0)), (2, Some(u64::MAX))], key(u64::MAX, None)));
        File::from(descriptor).write_all(b"the same").expect("written");
        store.clear();
        drop(store);
        let mut said = String::new();
        reader.read_to_string(&mut said).expect("its end");
        assert_eq!((said.as_str(), keys(&next(&mut stored))), ("the same", Vec::new()));
    }

    #[test]
    fn stored_descriptors_end_with_the_guest() {
        let mut stored = DescriptorStore::new(DescriptorBudget::new(1000).share(0).expect("a share"));
        let store = next(&mut stored);
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        store.put(FdKey { number: 1, owner: None }, writer.as_fd()).expect("kept");
        drop((stored, writer));
        reader.read_to_end(&mut Vec::new()).expect("its end, though the server lives");
    }

    #[test]
    fn descriptor_store_is_bounded_by_its_share() {
        let share = DescriptorBudget::new(20).share(0).expect("a share");
        let most = share.most();
        let mut stored = DescriptorStore::new(share);
        let store = next(&mut stored);
        for number in 0..100 {
            let file = File::open("/dev/null").expect("open");
            store.put(FdKey { number, owner: None }, file.as_fd()).expect("taken");
        }
        drop(store);
        let store = next(&mut stored);
        assert_eq!(keys(&store).len(), most);
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        store.put(FdKey { number: 0, owner: None }, writer.as_fd()).expect("in place of another");
        drop((store, writer));
        let mut taken = next(&mut stored).take_stored();
        let (_, first) = taken.swap_remove(0);
        File::from(first).write_all(b"the same").expect("written");
        drop((taken, stored));
        let mut said = String::new();
        reader.read_to_string(&mut said).expect("its end");
        assert_eq!(said, "the same");
    }

    #[test]
    fn unsent_releases_precede_the_next_message() {
        let (ours, theirs) = packet::pair().expect("a pair");
        packet::send(&ours, &Message::End.encode(), &[]).expect("sent");
        let store = FdStore::new(theirs).expect("a store");
        let [last, next] = [1, 2].map(|number| FdKey { number, owner: None });
        while packet::send(&store.socket, &Message::End.encode(), &[]) != Err(Errno::AGAIN) {}
        store.release(last);
        let reads = thread::spawn(move || {
            let told = std::iter::from_fn(|| receive(&ours).expect("a message"));
            let told = told.map(|(message, _)| message);
            told.skip_while(|message| *message == Message::End).take(2).collect::<Vec<_>>()
        });
        store.put(next, File::open("/dev/null").expect("open").as_fd()).expect("kept");
        assert_eq!(reads.join().expect("a thread"), [Message::Drop(last), Message::Keep(next)]);
    }

    proptest! {
        #[test]
        fn a_message_is_what_was_said(kind in 0..6_u8, rest in prop::collection::vec(any::<u8>(), 0..40)) {
            let bytes = [&[kind], &rest[..]].concat();
            if let Some(message) = Message::decode(&bytes) {
                prop_assert_eq!(Message::decode(&message.encode()), Some(message));
            }
        }
    }
}
