//! Encoding of intents and outcomes. Decoding accepts arbitrarily damaged input.

use tombolo_core::fs::{
    FileType, Mode, Name, NameBuf, Op, PersistentHandle, SetAttr, SetTime, Timestamp, XattrName,
};
use tombolo_core::{ClientId, KeyProperties, RequestKey, Stability};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::layout::{self, CHECKED_FROM, HANDLE_MAX_LEN, INTENT_BYTES, REQUEST_KEY_BYTES, state};
use crate::failure::Failure;
use crate::intent::{NamedEntry, RecordedEffect, ValueMark, XattrChange};
use crate::key::EntryKey;
use crate::outcome::{Inode, NodeMark, Outcome};

/// An intent as stored in a slot, with the key of its request.
#[derive(Clone, Debug)]
pub struct StoredIntent {
    pub key: EntryKey,
    pub effect: RecordedEffect,
    pub sequence: u64,
    pub time: Timestamp,
}

/// An outcome as stored in a slot, with the key of its request.
#[derive(Clone, Debug)]
pub struct StoredOutcome {
    pub key: EntryKey,
    pub outcome: Outcome,
    /// Position in the order of all operations at which this one began.
    pub sequence: u64,
    pub time: Timestamp,
    /// Digest of the operation's claim ([`Claim::number`](crate::intent::Claim::number)); 0 for none.
    pub claim: u64,
    /// Position in the same order at which the operation ended.
    pub ended: u64,
}

/// Encodes an intent, except the slot's state, and returns the length used; `None` if it does not fit.
pub fn intent_bytes(found: &StoredIntent) -> Option<([u8; INTENT_BYTES], usize)> {
    let mut fixed = layout::Intent::new_zeroed();
    fixed.operation = operation_number(found.key.op)?.into();
    fixed.sequence = found.sequence.into();
    fixed.key = key_of(&found.key)?;
    fixed.time = time_of(found.time);
    let (mut names, mut names_len) = ([0; 2 * 255], 0);
    let mut add_name = |name: &[u8]| -> Option<u16> {
        names.get_mut(names_len..names_len + name.len())?.copy_from_slice(name);
        names_len += name.len();
        Some(name.len() as u16)
    };
    let mut add = |named_entry: &NamedEntry| -> Option<(layout::Handle, layout::Mark, u16)> {
        let len = add_name(named_entry.name.as_name().as_bytes())?;
        Some((handle_of(&named_entry.parent)?, mark_of(named_entry.found.as_ref()), len))
    };
    let mut first = |named_entry: &NamedEntry| -> Option<()> {
        let (parent, found, len) = add(named_entry)?;
        (fixed.parent, fixed.found, fixed.name_len) = (parent, found, len.into());
        Some(())
    };
    match &found.effect {
        RecordedEffect::Make { at, file_type } => {
            first(at)?;
            fixed.file_type = type_number(*file_type).into();
        }
        RecordedEffect::Link { at, node } => {
            first(at)?;
            fixed.other_found = mark_of(Some(node));
        }
        RecordedEffect::Remove { at } => first(at)?,
        RecordedEffect::Rename { from, to } => {
            first(from)?;
            let (parent, found, len) = add(to)?;
            (fixed.other_parent, fixed.other_found, fixed.other_name_len) = (parent, found, len.into());
        }
        RecordedEffect::Change { node, set, ctime_before, size_before } => {
            fixed.parent = handle_of(node)?;
            fixed.attributes = attributes_of(set, *ctime_before);
            fixed.size_before = (*size_before).into();
        }
        RecordedEffect::Xattr { node, name, before, change } => {
            fixed.parent = handle_of(node)?;
            fixed.name_len = add_name(name.as_name().as_bytes())?.into();
            let (number, value) = xattr_change_of(*change);
            fixed.file_type = number.into();
            fixed.size_before = before.map_or(NO_VALUE, |value| value.0).into();
            fixed.len = value.into();
        }
        RecordedEffect::Append { node, size_before, len } => {
            fixed.parent = handle_of(node)?;
            fixed.size_before = (*size_before).into();
            fixed.len = (*len).into();
        }
    }
    let mut slot = [0; INTENT_BYTES];
    let len = size_of_val(&fixed) + names_len;
    let checksum = crc32c::crc32c(fixed.as_bytes().get(CHECKED_FROM..)?);
    fixed.checksum = crc32c::crc32c_append(checksum, names.get(..names_len)?).into();
    slot.get_mut(..size_of_val(&fixed))?.copy_from_slice(fixed.as_bytes());
    slot.get_mut(size_of_val(&fixed)..len)?.copy_from_slice(names.get(..names_len)?);
    Some((slot, len))
}

/// Decodes the intent in a slot; `None` if there is none, or it is damaged.
pub fn read_intent(slot: &[u8]) -> Option<StoredIntent> {
    let (fixed, names) = layout::Intent::read_from_prefix(slot).ok()?;
    let (name, names) = names.split_at_checked(fixed.name_len.get().into())?;
    let (other_name, _) = names.split_at_checked(fixed.other_name_len.get().into())?;
    let checked = size_of_val(&fixed) + name.len() + other_name.len();
    let whole = fixed.state.get() == state::INTENT
        && fixed.checksum.get() == crc32c::crc32c(slot.get(CHECKED_FROM..checked)?);
    if !whole {
        return None;
    }
    let op = operation(fixed.operation.get())?;
    let named_entry = |parent, name, found| {
        let (parent, found) = (read_handle(parent)?, read_mark(found)?);
        Some(NamedEntry { parent, name: read_name(name)?, found })
    };
    let at = || named_entry(&fixed.parent, name, &fixed.found);
    let effect = match op {
        Op::Create | Op::Mkdir | Op::Symlink | Op::Mknod => {
            RecordedEffect::Make { at: at()?, file_type: file_type(fixed.file_type.get())? }
        }
        Op::Link => RecordedEffect::Link { at: at()?, node: read_mark(&fixed.other_found)?? },
        Op::Unlink | Op::Rmdir => RecordedEffect::Remove { at: at()? },
        Op::Rename => RecordedEffect::Rename {
            from: at()?,
            to: named_entry(&fixed.other_parent, other_name, &fixed.other_found)?,
        },
        Op::Write => RecordedEffect::Append {
            node: read_handle(&fixed.parent)?,
            size_before: fixed.size_before.get(),
            len: fixed.len.get(),
        },
        Op::Setxattr | Op::Removexattr => RecordedEffect::Xattr {
            node: read_handle(&fixed.parent)?,
            name: XattrName::new(name).ok()?.to_owned(),
            before: Some(fixed.size_before.get()).filter(|value| *value != NO_VALUE).map(ValueMark),
            change: read_xattr_change(fixed.file_type.get(), fixed.len.get())?,
        },
        _ => RecordedEffect::Change {
            node: read_handle(&fixed.parent)?,
            set: read_attributes(&fixed.attributes),
            ctime_before: read_time(&fixed.attributes.ctime_before),
            size_before: fixed.size_before.get(),
        },
    };
    Some(StoredIntent {
        key: read_key(&fixed.key, op)?,
        effect,
        sequence: fixed.sequence.get(),
        time: read_time(&fixed.time),
    })
}

/// Encodes an outcome, except the slot's state; `None` if it cannot be represented.
pub fn outcome_bytes(stored: &StoredOutcome) -> Option<[u8; layout::OUTCOME_BYTES]> {
    let mut slot = layout::Outcome::new_zeroed();
    slot.operation = operation_number(stored.key.op)?.into();
    slot.sequence = stored.sequence.into();
    slot.key = key_of(&stored.key)?;
    slot.time = time_of(stored.time);
    slot.claim = stored.claim.into();
    slot.ended = stored.ended.into();
    match &stored.outcome {
        Outcome::Done => slot.kind = 1.into(),
        Outcome::Node(NodeMark::Handle(handle)) => {
            slot.kind = 2.into();
            slot.node = handle_of(handle)?;
        }
        Outcome::Failed(failure) => {
            slot.kind = 3.into();
            slot.detail = failure.number().into();
        }
        Outcome::Wrote { count, stability } => {
            slot.kind = 4.into();
            slot.detail = stability_number(*stability)?.into();
            slot.count = (*count).into();
        }
        // The next process finds a node by its handle only.
        Outcome::Node(NodeMark::Inode(_)) => return None,
    }
    slot.checksum = crc32c::crc32c(slot.as_bytes().get(CHECKED_FROM..)?).into();
    Some(zerocopy::transmute!(slot))
}

/// Decodes the outcome in a slot; `None` if there is none, or it is damaged.
pub fn read_outcome(bytes: &[u8]) -> Option<StoredOutcome> {
    let (slot, _) = layout::Outcome::read_from_prefix(bytes).ok()?;
    let checked = slot.as_bytes().get(CHECKED_FROM..)?;
    if slot.state.get() != state::OUTCOME || slot.checksum.get() != crc32c::crc32c(checked) {
        return None;
    }
    let outcome = match slot.kind.get() {
        1 => Outcome::Done,
        2 => Outcome::Node(NodeMark::Handle(read_handle(&slot.node)?)),
        3 => Outcome::Failed(Failure::from_number(slot.detail.get())?),
        4 => {
            let stability = numbered_stability(slot.detail.get())?;
            Outcome::Wrote { count: slot.count.get(), stability }
        }
        _ => return None,
    };
    Some(StoredOutcome {
        key: read_key(&slot.key, operation(slot.operation.get())?)?,
        outcome,
        sequence: slot.sequence.get(),
        time: read_time(&slot.time),
        claim: slot.claim.get(),
        ended: slot.ended.get(),
    })
}

/// Defines pairs of number and meaning, which never change.
macro_rules! numbers {
    ($number_of:ident, $of_number:ident: $kind:ident { $($number:literal => $variant:ident,)+ }) => {
        #[allow(unreachable_patterns, reason = "some enumerations are listed whole")]
        fn $number_of(value: $kind) -> Option<u16> {
            match value {
                $($kind::$variant => Some($number),)+
                _ => None,
            }
        }

        fn $of_number(number: u16) -> Option<$kind> {
            match number {
                $($number => Some($kind::$variant),)+
                _ => None,
            }
        }
    };
}

numbers! {
    operation_number, operation: Op {
        1 => Create,
        2 => Mkdir,
        3 => Symlink,
        4 => Mknod,
        5 => Link,
        6 => Unlink,
        7 => Rmdir,
        8 => Rename,
        9 => Setattr,
        10 => Write,
        11 => Setxattr,
        12 => Removexattr,
    }
}

numbers! {
    file_type_number, numbered_file_type: FileType {
        1 => Regular,
        2 => Directory,
        3 => Symlink,
        4 => BlockDevice,
        5 => CharDevice,
        6 => Fifo,
        7 => Socket,
    }
}

numbers! {
    stability_number, numbered_stability: Stability {
        0 => Unstable,
        1 => DataSync,
        2 => FileSync,
    }
}

fn type_number(file_type: FileType) -> u32 {
    file_type_number(file_type).unwrap_or_default().into()
}

fn file_type(number: u32) -> Option<FileType> {
    numbered_file_type(u16::try_from(number).ok()?)
}

/// The kinds of keys: of NFS clients' calls, and of requests over links. Each has a number, the properties of
/// the key, and the length of the client id at the start of `layout::Key::request`; the key fills the rest.
const KINDS: [(u32, KeyProperties, usize); 2] =
    [(1, KeyProperties::empty(), 16), (2, KeyProperties::FENCED.union(KeyProperties::FEW_UNDER_WAY), 24)];

/// Encodes a key. `None` if client or key are too long for their kind, or the properties have no kind.
fn key_of(key: &EntryKey) -> Option<layout::Key> {
    let RequestKey { client, key: number, properties } = key.request;
    let (kind, _, client_len) = KINDS.into_iter().find(|(_, promised, _)| *promised == properties)?;
    let (client, beyond) = client.0.split_at_checked(client_len)?;
    let number = number.to_le_bytes();
    let (number, beyond_number) = number.split_at_checked(REQUEST_KEY_BYTES - client_len)?;
    if beyond.iter().chain(beyond_number).any(|byte| *byte != 0) {
        return None;
    }
    let mut bytes = layout::Key::new_zeroed();
    (bytes.kind, bytes.uid, bytes.gid) = (kind.into(), key.uid.into(), key.gid.into());
    bytes.request.get_mut(..client_len)?.copy_from_slice(client);
    bytes.request.get_mut(client_len..)?.copy_from_slice(number);
    Some(bytes)
}

fn read_key(bytes: &layout::Key, op: Op) -> Option<EntryKey> {
    let (_, properties, client_len) = KINDS.into_iter().find(|(kind, _, _)| *kind == bytes.kind.get())?;
    let (of_client, of_key) = bytes.request.split_at_checked(client_len)?;
    let (mut client, mut key) = (ClientId([0; 24]), [0; 16]);
    client.0.get_mut(..of_client.len())?.copy_from_slice(of_client);
    key.get_mut(..of_key.len())?.copy_from_slice(of_key);
    let request = RequestKey { client, key: u128::from_le_bytes(key), properties };
    // Keys with a session are not stored, as no session outlives its process.
    Some(EntryKey { request, session: None, op, uid: bytes.uid.get(), gid: bytes.gid.get() })
}

pub fn handle_of(handle: &PersistentHandle) -> Option<layout::Handle> {
    let mut bytes = [0; HANDLE_MAX_LEN];
    bytes.get_mut(..handle.bytes.len())?.copy_from_slice(&handle.bytes);
    let len = handle.bytes.len() as u16;
    Some(layout::Handle { kind: handle.kind.into(), len: len.into(), zero: 0.into(), bytes })
}

fn read_handle(handle: &layout::Handle) -> Option<PersistentHandle> {
    let bytes = handle.bytes.get(..handle.len.get().into())?;
    Some(PersistentHandle { kind: handle.kind.get(), bytes: bytes.into() })
}

/// Number stored instead of a [`ValueMark`] for an extended attribute that does not exist.
const NO_VALUE: u64 = u64::MAX;

/// Encodes a change of an extended attribute as its number, and the [`ValueMark`] of the new value.
fn xattr_change_of(change: XattrChange) -> (u32, u64) {
    match change {
        XattrChange::Make(value) => (1, value.0),
        XattrChange::Replace(value) => (2, value.0),
        XattrChange::Remove => (0, NO_VALUE),
    }
}

fn read_xattr_change(number: u32, value: u64) -> Option<XattrChange> {
    match number {
        0 => Some(XattrChange::Remove),
        1 => Some(XattrChange::Make(ValueMark(value))),
        2 => Some(XattrChange::Replace(ValueMark(value))),
        _ => None,
    }
}

fn read_name(bytes: &[u8]) -> Option<NameBuf> {
    Name::new(bytes).ok().map(Name::to_owned)
}

fn time_of(time: Timestamp) -> layout::Time {
    layout::Time { secs: time.secs.into(), nanos: time.nanos.into(), zero: 0.into() }
}

fn read_time(time: &layout::Time) -> Timestamp {
    Timestamp { secs: time.secs.get(), nanos: time.nanos.get() }
}

fn mark_of(found: Option<&Inode>) -> layout::Mark {
    let mut mark = layout::Mark::new_zeroed();
    mark.found = 1.into();
    if let Some(inode) = found {
        mark.found = if inode.birth.is_some() { 3 } else { 2 }.into();
        mark.fsid = inode.fsid.into();
        mark.fileid = inode.fileid.into();
        mark.generation = inode.generation.into();
        mark.birth = time_of(inode.birth.unwrap_or_default());
    }
    mark
}

/// Decodes the node found under a name. `Some(None)`: there was none. `None`: not looked up, or malformed.
fn read_mark(mark: &layout::Mark) -> Option<Option<Inode>> {
    let birth = match mark.found.get() {
        1 => return Some(None),
        2 => None,
        3 => Some(read_time(&mark.birth)),
        _ => return None,
    };
    let (fsid, fileid, generation) = (mark.fsid.get(), mark.fileid.get(), mark.generation.get());
    Some(Some(Inode { fsid, fileid, generation, birth }))
}

fn attributes_of(set: &SetAttr, ctime_before: Timestamp) -> layout::Attributes {
    let at = |time: Option<SetTime>| match time {
        Some(SetTime::At(time)) => Some(time),
        // The time meant by "now" cannot be checked later.
        Some(SetTime::Now) | None => None,
    };
    let (atime, mtime) = (at(set.atime), at(set.mtime));
    let given = [
        set.mode.is_some(),
        set.uid.is_some(),
        set.gid.is_some(),
        set.size.is_some(),
        atime.is_some(),
        mtime.is_some(),
    ];
    let bits = given.iter().enumerate().fold(0, |bits, (bit, given)| bits | u32::from(*given) << bit);
    layout::Attributes {
        set: bits.into(),
        mode: set.mode.unwrap_or_default().bits().into(),
        uid: set.uid.unwrap_or_default().into(),
        gid: set.gid.unwrap_or_default().into(),
        size: set.size.unwrap_or_default().into(),
        atime: time_of(atime.unwrap_or_default()),
        mtime: time_of(mtime.unwrap_or_default()),
        ctime_before: time_of(ctime_before),
    }
}

fn read_attributes(attributes: &layout::Attributes) -> SetAttr {
    let given = |bit: u32| attributes.set.get() >> bit & 1 == 1;
    SetAttr {
        mode: given(0).then(|| Mode::new(attributes.mode.get())),
        uid: given(1).then(|| attributes.uid.get()),
        gid: given(2).then(|| attributes.gid.get()),
        size: given(3).then(|| attributes.size.get()),
        atime: given(4).then(|| SetTime::At(read_time(&attributes.atime))),
        mtime: given(5).then(|| SetTime::At(read_time(&attributes.mtime))),
        ..SetAttr::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Outcomes of an NFS call and of a request over a link, in the encoding of all servers with version 2.
    const RECORDED: [&str; 2] = [
        "00000600257244a4050000000000000001000000e80300006400000088776655443322110000000000000000d4c3b2a109000000fecaad0b00000000\
         0100000000f153650000000007000000",
        "000006002ed0e6b0050000000000000002000000e80300006400000030313233343536373839616263646566e80300000000008007000000\
         010000000100000000f153650000000007000000",
    ];

    #[test]
    fn keys_have_the_bytes_that_earlier_servers_wrote() {
        let call = RequestKey {
            client: 0x1122_3344_5566_7788.into(),
            key: 0x0bad_cafe_0000_0009_a1b2_c3d4,
            properties: KeyProperties::empty(),
        };
        let mut client = *b"0123456789abcdef........";
        client[16..].copy_from_slice(&0x8000_0000_0000_03e8_u64.to_le_bytes());
        let properties = KeyProperties::FENCED | KeyProperties::FEW_UNDER_WAY;
        let numbered = RequestKey { client: ClientId(client), key: 0x1_0000_0007, properties };
        for (request, recorded) in [call, numbered].into_iter().zip(RECORDED) {
            let key = EntryKey { request, session: None, op: Op::Unlink, uid: 1000, gid: 100 };
            let time = Timestamp { secs: 1_700_000_000, nanos: 7 };
            let stored =
                StoredOutcome { key, outcome: Outcome::Done, sequence: 5, time, claim: 0xfeed, ended: 6 };
            let mut slot = outcome_bytes(&stored).expect("a slot");
            let text: String = slot.iter().take(76).map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(text, recorded);
            slot[0] = state::OUTCOME as u8;
            assert_eq!(read_outcome(&slot).expect("an outcome").key, key);
        }
    }

    #[test]
    fn a_key_that_has_no_room_is_not_kept() {
        let request = RequestKey { client: ClientId([1; 24]), key: 1, properties: KeyProperties::empty() };
        let key = EntryKey { request, session: None, op: Op::Unlink, uid: 0, gid: 0 };
        assert!(key_of(&key).is_none());
        let properties = KeyProperties::FENCED | KeyProperties::FEW_UNDER_WAY;
        let request = RequestKey { key: u128::MAX, properties, ..request };
        assert!(key_of(&EntryKey { request, ..key }).is_none());
    }
}
