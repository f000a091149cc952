//! virtio-fs as a transport: FUSE requests in a guest's virtqueues (virtio 1.2, chapter 5.11).
//!
//! [`VirtioFs`] is the device; `tombolo-host-vhost` walks the queues and hands it one checked descriptor
//! chain at a time. File data goes from and to the guest's own pages; everything else is copied out once
//! before it is looked at.

mod exchange;

use crate::kept::{self, KeepError, Kept, Memory};
use crate::session::{Options as SessionOptions, Session, Slot};
use exchange::ChainExchange;
use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use tombolo_core::fs::{Client, Export, FileSystem, PermissionCheck};
use tombolo_core::{Error, SessionId};
use tombolo_host_runtime::free_list::FreeList;
use tombolo_host_vhost::{Chain, Device, FdStore, QueueIndex};
use tombolo_mem::Region;
use tombolo_wire_fuse::Opcode;
use tombolo_wire_fuse::layout::header::InHeader;
use zerocopy::FromBytes;

/// Longest tag in bytes.
pub const TAG_BYTES_MAX: usize = 36;

const FORGETS: QueueIndex = QueueIndex(0);

/// How much private memory is retained; more is given back to the system.
const SPARE_MAX: usize = 64;

/// How a guest sees the device.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the guest mounts it by; at most [`TAG_BYTES_MAX`] bytes, not empty.
    pub tag: String,
    /// How many queues take requests, beside the one for forgets.
    pub request_queues: u16,
    /// What the log calls the guest.
    pub label: String,
    /// How its sessions are to be.
    pub session: SessionOptions,
    /// Whether a keeper holds the guest's connection and, alone, the area of its requests under way. Then
    /// sessions outlive the process: the next one goes on with them. Where the export can be changed it must
    /// stand on a layer that performs each request once, for the next process too.
    pub is_kept: bool,
}

/// Why there is no device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The tag is empty or too long.
    #[error("a tag has 1 to {TAG_BYTES_MAX} bytes, this one {bytes}")]
    Tag {
        /// Its length.
        bytes: usize,
    },
    /// The export could not be attached to.
    #[error("the export is not there")]
    Export(#[source] Error),
    /// Its sessions cannot outlive the process.
    #[error("guests cannot be kept")]
    Keep(#[source] KeepError),
}

/// A virtio-fs device for one guest.
///
/// A guest's mount is a session, from INIT to DESTROY; one that mounts again, or reboots, begins another, and
/// what the one before held is given back.
pub struct VirtioFs {
    options: Options,
    export: Arc<dyn Export>,
    session_ids: Arc<AtomicU64>,
    session: RwLock<Arc<Session>>,
    /// One session follows another at a time.
    renewing: Mutex<()>,
    /// Where sessions outlive the process, once the keeper has said so.
    memory: OnceLock<Memory>,
    /// Private memory that no request uses now.
    spare: Arc<FreeList<Box<Slot>>>,
}

impl VirtioFs {
    /// A device that serves `export`. Its sessions are numbered from `session_ids`, which all devices of a
    /// server share.
    ///
    /// # Errors
    /// See [`DeviceError`].
    pub fn new(
        export: Arc<dyn Export>,
        mut options: Options,
        session_ids: Arc<AtomicU64>,
    ) -> Result<VirtioFs, DeviceError> {
        if !(1..=TAG_BYTES_MAX).contains(&options.tag.len()) {
            return Err(DeviceError::Tag { bytes: options.tag.len() });
        }
        options.request_queues = options.request_queues.max(1);
        let file_system = attach(export.as_ref(), &options, &session_ids).map_err(DeviceError::Export)?;
        if options.is_kept {
            kept::root_of(&*file_system.1).map_err(DeviceError::Keep)?;
        }
        let first = RwLock::new(begin(file_system, &options));
        let (spare, memory) = (Arc::new(FreeList::new(SPARE_MAX)), OnceLock::new());
        Ok(VirtioFs {
            options,
            export,
            session_ids,
            session: first,
            renewing: Mutex::default(),
            memory,
            spare,
        })
    }

    /// The present session, for its counters.
    pub fn session(&self) -> Arc<Session> {
        self.session.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends the present session, and begins another.
    fn renew(&self, old: &Arc<Session>) {
        // Both ends of a session, DESTROY and the queues' stop, may come at once; one of them begins the
        // next.
        let _alone = self.renewing.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&self.session(), old) {
            return;
        }
        old.end();
        let next = match self.next() {
            Ok(next) => next,
            Err(error) => {
                // The old one refuses a second INIT, so the guest's mount fails, which is what there is to
                // say.
                let error: &dyn std::error::Error = &error;
                tracing::error!(device = self.name(), error, "the export cannot be attached to");
                return;
            }
        };
        *self.session.write().unwrap_or_else(PoisonError::into_inner) = next;
    }

    fn next(&self) -> Result<Arc<Session>, DeviceError> {
        let file_system = attach(self.export.as_ref(), &self.options, &self.session_ids);
        let (id, file_system) = file_system.map_err(DeviceError::Export)?;
        let Some(memory) = self.memory.get() else { return Ok(begin((id, file_system), &self.options)) };
        let kept = Kept::begin(file_system, memory).map_err(DeviceError::Keep)?;
        Ok(Session::kept(id, &kept, self.options.session.clone()))
    }
}

/// Whether sessions of this export can outlive the process.
///
/// # Errors
/// [`DeviceError::Export`], and [`DeviceError::Keep`], which says why not.
pub fn can_be_kept(export: &dyn Export) -> Result<(), DeviceError> {
    let client = Client { session: SessionId(0), label: "keeper".into(), checks: PermissionCheck::Caller };
    let file_system = export.attach(&client).map_err(DeviceError::Export)?;
    kept::root_of(&*file_system).map(drop).map_err(DeviceError::Keep)
}

type Attached = (SessionId, Arc<dyn FileSystem>);

fn attach(export: &dyn Export, options: &Options, ids: &AtomicU64) -> Result<Attached, Error> {
    let id = SessionId(ids.fetch_add(1, Ordering::Relaxed));
    let client = Client { session: id, label: options.label.clone(), checks: PermissionCheck::Caller };
    Ok((id, export.attach(&client)?))
}

fn begin((id, file_system): Attached, options: &Options) -> Arc<Session> {
    Session::new(id, file_system, options.session.clone())
}

impl Device for VirtioFs {
    fn name(&self) -> &str {
        &self.options.tag
    }

    fn config(&self) -> Cow<'_, [u8]> {
        let mut config = vec![0; TAG_BYTES_MAX];
        for (place, byte) in config.iter_mut().zip(self.options.tag.bytes()) {
            *place = byte;
        }
        config.extend(u32::from(self.options.request_queues).to_le_bytes());
        Cow::Owned(config)
    }

    fn offers_config(&self) -> bool {
        false
    }

    fn queue_count(&self) -> u16 {
        self.options.request_queues.saturating_add(1)
    }

    /// The first queue, named hiprio, is for forgets and interrupts (virtio 1.2, chapter 5.11.2); Linux sends
    /// forgets alone.
    fn is_urgent(&self, queue: QueueIndex) -> bool {
        queue != FORGETS
    }

    fn repeats_requests(&self) -> bool {
        self.options.is_kept
    }

    fn kept_bytes(&self) -> usize {
        if self.options.is_kept { kept::AREA_BYTES } else { 0 }
    }

    /// Goes on with the session that is in there, or begins a new one.
    fn keep_in(
        &self,
        memory: Region,
        store: Option<FdStore>,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let file_system = self.session().shared_file_system();
        if self.memory.set(Memory::new(memory, store, &*file_system)?).is_err() {
            return Err("the area of requests under way is there already".into());
        }
        let next = self.next()?;
        *self.session.write().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }

    fn handle(&self, _queue: QueueIndex, chain: Chain) {
        let mut slot = self.spare.take().unwrap_or_default();
        let exchange = ChainExchange::receive(chain, &mut slot, self.spare.clone());
        let mut session = self.session();
        let opcode = opcode(&slot);
        if opcode == Some(Opcode::Init) && session.is_ready() {
            self.renew(&session);
            session = self.session();
        }
        if let Some((slot, exchange)) = session.handle(slot, exchange) {
            drop(exchange);
            self.spare.give_back(slot);
        }
        if opcode == Some(Opcode::Destroy) {
            self.renew(&session);
        }
    }

    /// Its session ends with its queues. A wait for a lock would last until another guest gives that up.
    fn is_to_rest(&self) {
        self.session().interrupt_all();
    }

    fn stopped(&self) {
        self.renew(&self.session());
    }
}

fn opcode(slot: &Slot) -> Option<Opcode> {
    let (header, _) = InHeader::read_from_prefix(slot.head()).ok()?;
    Opcode::from_wire(header.opcode)
}

impl std::fmt::Debug for VirtioFs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VirtioFs").field("options", &self.options).finish_non_exhaustive()
    }
}
