//! READDIR and READDIRPLUS (RFC 1813 §3.3.16, §3.3.17).

use std::hash::Hasher;
use std::sync::Arc;

use siphasher::sip::SipHasher13;
use tombolo_core::Error;
use tombolo_core::fs::{AccessMask, Attr, Cookie, DirBudget, DirEntry, DirPage, Entry, FileType, NodeId};
use tombolo_wire_nfs3::args::{ReaddirArgs, ReaddirplusArgs};
use tombolo_wire_nfs3::attr::fattr3;
use tombolo_wire_nfs3::listing::{
    DirEntry3, DirEntryPlus3, ENTRY_ALIGN, ENTRY_BYTES, ListingWriter, frame_bytes, plus_bytes,
};
use tombolo_wire_nfs3::{Cookie3, CookieVerifier, FileHandle, Status};
use tombolo_wire_xdr::Encoder;

use super::LISTING_MAX_BYTES;
use crate::caller::{CallTarget, Caller};
use crate::failure::{Failure, Result, write_failure};
use crate::nodes::{Node, NodeGuard};

/// Executes READDIR (RFC 1813 §3.3.16).
pub(crate) async fn readdir(caller: &Caller<'_>, args: ReaddirArgs<'_>, results: &mut Encoder<'_>) {
    let wanted = Wanted::new(caller, args.dir, args.cookie, args.verifier, args.count, None);
    write_page(caller, args.dir, &wanted, results).await;
}

/// Executes READDIRPLUS (§3.3.17).
pub(crate) async fn readdirplus(caller: &Caller<'_>, args: ReaddirplusArgs<'_>, results: &mut Encoder<'_>) {
    let dircount = Some(args.dircount);
    let wanted = Wanted::new(caller, args.dir, args.cookie, args.verifier, args.maxcount, dircount);
    write_page(caller, args.dir, &wanted, results).await;
}

async fn write_page(caller: &Caller<'_>, dir: FileHandle<'_>, wanted: &Wanted, results: &mut Encoder<'_>) {
    let written = caller.on(dir, async |dir| list(dir, wanted, results, None).await.map(drop));
    write_failure(&written.await, results);
}

/// A page requested by READDIR, READDIRPLUS or LIST.
pub(super) struct Wanted {
    cookie: Cookie,
    verifier: CookieVerifier,
    /// Maximum size of the results.
    all_bytes: usize,
    /// Maximum size of the entries without attributes and handles; `None` for READDIR.
    dir_bytes: Option<usize>,
    /// Approximate length of an entry's handle in bytes: that of the directory's.
    handle_len: usize,
}

impl Wanted {
    fn new(
        caller: &Caller<'_>,
        handle: FileHandle<'_>,
        cookie: Cookie3,
        verifier: CookieVerifier,
        all_bytes: u32,
        dir_bytes: Option<u32>,
    ) -> Self {
        let limit = LISTING_MAX_BYTES.min(caller.transfer_max());
        Self {
            cookie: Cookie(cookie.0),
            verifier,
            all_bytes: all_bytes.min(limit) as usize,
            dir_bytes: dir_bytes.map(|bytes| bytes.min(limit) as usize),
            handle_len: handle.as_bytes().len(),
        }
    }

    /// Creates a request for a READDIRPLUS page that is limited by `all_bytes` only.
    pub(super) fn plus(
        handle: FileHandle<'_>,
        cookie: Cookie3,
        verifier: CookieVerifier,
        all_bytes: usize,
    ) -> Self {
        let handle_len = handle.as_bytes().len();
        Self { cookie: Cookie(cookie.0), verifier, all_bytes, dir_bytes: Some(all_bytes), handle_len }
    }

    /// Returns the back end's budget: `all_bytes`, or less if `dircount` does not allow as many entries even
    /// with the shortest names.
    fn budget(&self) -> DirBudget {
        let remaining = self.all_bytes.saturating_sub(frame_bytes(true));
        let Some(dir_bytes) = self.dir_bytes else {
            return DirBudget {
                size_bytes: remaining,
                entry_bytes: ENTRY_BYTES,
                align: ENTRY_ALIGN,
                plus: false,
            };
        };
        let entry_bytes = ENTRY_BYTES + plus_bytes(true, Some(self.handle_len));
        let shortest = ENTRY_BYTES + ENTRY_ALIGN;
        let by_dircount = dir_bytes / shortest * (entry_bytes + ENTRY_ALIGN);
        DirBudget { size_bytes: remaining.min(by_dircount), entry_bytes, align: ENTRY_ALIGN, plus: true }
    }

    fn begin<'e, 'b>(
        &self,
        results: &'e mut Encoder<'b>,
        attr: &Attr,
        verifier: CookieVerifier,
    ) -> Result<ListingWriter<'e, 'b>> {
        let attributes = fattr3(attr);
        let writer = match self.dir_bytes {
            None => ListingWriter::readdir(results, Some(&attributes), verifier, self.all_bytes),
            Some(dir_bytes) => {
                ListingWriter::readdirplus(results, Some(&attributes), verifier, dir_bytes, self.all_bytes)
            }
        };
        writer.ok_or(Failure(Status::TooSmall))
    }
}

/// Writes a page of `dir`; appends its subdirectories to `below`. Returns `true` if `dir` ends with the page.
pub(super) async fn list(
    dir: &CallTarget,
    wanted: &Wanted,
    results: &mut Encoder<'_>,
    below: Option<&mut Vec<Arc<Node>>>,
) -> Result<bool> {
    let attr = dir.directory_attr().await?;
    let verifier = verifier_of(&attr);
    if wanted.cookie != Cookie::START && wanted.verifier != verifier {
        return Err(Failure(Status::BadCookie));
    }
    check_listing(dir, &attr).await?;
    let export = &dir.export;
    let opening = export.openings.for_listing(dir.node.id).await?;
    let page = DirPage::new(wanted.budget());
    let page = export.file_system.readdir(&dir.cx, opening.file(), wanted.cookie, page).resolve().await;
    let page = page.map_err(|error| match error {
        // The directory was removed a moment ago. RFC 1813 §3.3.16 has no NOENT.
        Error::NotFound => Failure(Status::Stale),
        error => error.into(),
    })?;
    let start = results.position();
    let written = write(dir, wanted, (&attr, verifier), &page, results, below).await;
    if written.is_err() {
        results.truncate(start);
    }
    written
}

/// Checks read permission, which a directory's owner does not have implicitly.
async fn check_listing(dir: &CallTarget, attr: &Attr) -> Result<()> {
    if dir.cx.identity.uid == 0 {
        return Ok(());
    }
    let permissions = &dir.export.permissions;
    let may = permissions.allowed(&dir.cx, dir.node.id, attr, AccessMask::READ).await?;
    if may.contains(AccessMask::READ) { Ok(()) } else { Err(Failure(Status::Acces)) }
}

async fn write(
    dir: &CallTarget,
    wanted: &Wanted,
    (attr, verifier): (&Attr, CookieVerifier),
    page: &DirPage,
    results: &mut Encoder<'_>,
    mut below: Option<&mut Vec<Arc<Node>>>,
) -> Result<bool> {
    let begun = wanted.begin(results, attr, verifier);
    let mut left_out = begun.is_err();
    let mut writer = begun.ok();
    for found in page.iter() {
        // The guard forgets the look-up of an entry that is left out.
        let guard = found.entry.map(|entry| hold(dir, entry));
        let Some(writer) = writer.as_mut().filter(|_| !left_out) else { continue };
        let entry = entry3(dir, attr, &found);
        left_out = match (wanted.dir_bytes, guard) {
            (None, _) => !writer.push(&entry),
            (Some(_), None) => !writer.push_plus(&DirEntryPlus3 { entry, attributes: None, handle: None }),
            (Some(_), Some(guard)) => {
                let node = dir.export.adopt_guard(guard).await.ok();
                let attributes = found.entry.map(|found| fattr3(&found.attr));
                let handle = node.as_ref().map(|node| node.wire_handle());
                let is_full = !writer.push_plus(&DirEntryPlus3 { entry, attributes, handle });
                let is_dir = found.entry.is_some_and(|found| found.attr.file_type == FileType::Directory);
                if let (Some(below), Some(node), true) = (&mut below, node, is_dir && !is_full) {
                    below.push(node);
                }
                is_full
            }
        };
    }
    let writer = writer.ok_or(Failure(Status::TooSmall))?;
    let complete = page.is_end() && !left_out;
    if writer.is_empty() && !complete {
        return Err(Failure(Status::TooSmall));
    }
    writer.finish(complete);
    Ok(complete)
}

fn hold(dir: &CallTarget, entry: &Entry) -> NodeGuard {
    NodeGuard::new(&dir.export.file_system, dir.export.session, entry.node)
}

fn entry3<'a>(dir: &CallTarget, attr: &Attr, found: &DirEntry<'a>) -> DirEntry3<'a> {
    // The parent of an export's root is not exposed.
    let above_root = dir.node.id == NodeId::ROOT && found.name == b"..";
    let fileid = if above_root { attr.fileid } else { found.fileid };
    DirEntry3 { fileid, name: found.name, cookie: Cookie3(found.cookie.0) }
}

/// Returns a verifier that identifies the directory: cookies are valid as long as it exists.
fn verifier_of(attr: &Attr) -> CookieVerifier {
    let mut hasher = SipHasher13::new();
    hasher.write_u64(attr.fsid);
    hasher.write_u64(attr.fileid);
    hasher.write_u64(attr.generation);
    if let Some(birth) = attr.btime {
        hasher.write_i64(birth.secs);
        hasher.write_u32(birth.nanos);
    }
    CookieVerifier(hasher.finish().to_be_bytes())
}
