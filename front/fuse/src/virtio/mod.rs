//! virtio-fs transport: FUSE requests in a guest's virtqueues (virtio 1.2, section 5.11).
//!
//! [`VirtioFs`] is the device; `tombolo-host-vhost` walks the queues and delivers one checked descriptor
//! chain at a time. File data is transferred directly from and to the guest's pages; everything else is
//! copied out once before it is evaluated.

mod exchange;

use crate::persistent::{self, Memory, PersistError, PersistentFs};
use crate::session::{Options as SessionOptions, Session, Slot};
use exchange::ChainExchange;
use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use tombolo_core::fs::{Client, Export, FileSystem, PermissionCheck};
use tombolo_core::{Error, SessionId, lock};
use tombolo_host_runtime::free_list::FreeList;
use tombolo_host_vhost::{Chain, Device, FdStore, QueueIndex};
use tombolo_mem::Region;
use tombolo_wire_fuse::Opcode;
use tombolo_wire_fuse::layout::header::InHeader;
use zerocopy::FromBytes;

/// Maximum length of a tag in bytes (virtio 1.2, section 5.11.4).
pub const TAG_BYTES_MAX: usize = 36;

/// The queue hiprio, on which Linux sends FORGET.
const FORGETS: QueueIndex = QueueIndex(0);

/// Maximum number of spare slots; more are freed.
const SPARE_MAX: usize = 64;

/// Options of a virtio-fs device.
#[derive(Clone, Debug)]
pub struct Options {
    /// Mount tag; 1 to [`TAG_BYTES_MAX`] bytes.
    pub tag: String,
    /// Number of request queues, in addition to the queue for forgets.
    pub request_queues: u16,
    /// Name of the guest in the log.
    pub label: String,
    /// Configuration of the device's sessions.
    pub session: SessionOptions,
    /// `true` if a keeper holds the guest's connection and is the only holder of its in-flight area. Sessions
    /// then survive the process, and the next one resumes them. A writable export must be stacked on a layer
    /// that executes each request once across processes.
    pub is_kept: bool,
}

/// Error of [`VirtioFs::new`] and of [`can_survive_restart`].
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The tag is empty or too long.
    #[error("a tag must have 1 to {TAG_BYTES_MAX} bytes, but this one has {bytes}")]
    Tag {
        /// Length of the refused tag, in bytes.
        bytes: usize,
    },
    /// The export cannot be attached.
    #[error("cannot attach to the export")]
    Export(#[source] Error),
    /// The sessions cannot survive a restart of the process.
    #[error("sessions cannot survive a restart of the server")]
    Keep(#[source] PersistError),
}

/// A virtio-fs device for one guest.
///
/// A guest's mount is a session, from INIT to DESTROY. A guest that mounts again or reboots begins another
/// one, and the resources of the previous session are released.
pub struct VirtioFs {
    options: Options,
    export: Arc<dyn Export>,
    session_ids: Arc<AtomicU64>,
    session: RwLock<Arc<Session>>,
    /// Serialises session changes.
    renewing: Mutex<()>,
    /// Memory for sessions that survive the process, set by [`Device::set_state_memory`].
    memory: OnceLock<Memory>,
    /// Slots that no request uses.
    spare: Arc<FreeList<Box<Slot>>>,
}

impl VirtioFs {
    /// Creates a device that serves `export`. Its sessions are numbered from `session_ids`, shared by all
    /// devices of a server.
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
            persistent::root_of(&*file_system.1).map_err(DeviceError::Keep)?;
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

    /// Returns the current session, for its counters.
    pub fn session(&self) -> Arc<Session> {
        self.session.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends session `old` and begins another, unless that has been done.
    fn renew(&self, old: &Arc<Session>) {
        // DESTROY and the stop of the queues may race; only one of them begins the next session.
        let _alone = lock(&self.renewing);
        if !Arc::ptr_eq(&self.session(), old) {
            return;
        }
        old.end();
        let next = match self.next() {
            Ok(next) => next,
            Err(error) => {
                // The old session refuses a second INIT, so the guest's mount fails.
                let error: &dyn std::error::Error = &error;
                tracing::error!(device = self.name(), error, "cannot attach to the export");
                return;
            }
        };
        *self.session.write().unwrap_or_else(PoisonError::into_inner) = next;
    }

    fn next(&self) -> Result<Arc<Session>, DeviceError> {
        let file_system = attach(self.export.as_ref(), &self.options, &self.session_ids);
        let (id, file_system) = file_system.map_err(DeviceError::Export)?;
        let Some(memory) = self.memory.get() else { return Ok(begin((id, file_system), &self.options)) };
        let persistent = PersistentFs::begin(file_system, memory).map_err(DeviceError::Keep)?;
        Ok(Session::persistent(id, &persistent, self.options.session.clone()))
    }
}

/// Checks that sessions of this export can survive the process.
///
/// # Errors
/// [`DeviceError::Export`], and [`DeviceError::Keep`] with the reason.
pub fn can_survive_restart(export: &dyn Export) -> Result<(), DeviceError> {
    let client = Client { session: SessionId(0), label: "keeper".into(), checks: PermissionCheck::Caller };
    let file_system = export.attach(&client).map_err(DeviceError::Export)?;
    persistent::root_of(&*file_system).map(drop).map_err(DeviceError::Keep)
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

    /// Returns `false` for the first queue, hiprio (virtio 1.2, section 5.11.2: FORGET and INTERRUPT), on
    /// which Linux sends only FORGET.
    fn is_urgent(&self, queue: QueueIndex) -> bool {
        queue != FORGETS
    }

    fn repeats_requests(&self) -> bool {
        self.options.is_kept
    }

    fn state_bytes(&self) -> usize {
        if self.options.is_kept { persistent::AREA_BYTES } else { 0 }
    }

    /// Resumes the session in `memory`, or begins a new one.
    fn set_state_memory(
        &self,
        memory: Region,
        store: Option<FdStore>,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let file_system = self.session().shared_file_system();
        if self.memory.set(Memory::new(memory, store, &*file_system)?).is_err() {
            return Err("the memory for session state has already been set".into());
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

    /// Interrupts pending requests, because the session ends with its queues. Otherwise a wait for a lock
    /// could last until another guest releases the lock.
    fn queue_stopping(&self) {
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
