//! An export whose writes a test lets happen, and a record of the requests for it.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};

use tombolo_back_memory::Memory;
use tombolo_back_vrpc_client::{LinkLossPolicy, VrpcFileSystem};
use tombolo_core::fs::{File, FileSystem, Write, Written};
use tombolo_core::{Answer, Ctx, Error};
use tombolo_front_vrpc_server::{Options, VrpcServer};
use tombolo_host_links::server::{Request, Responder, Session as LinkSession};
use tombolo_mem::Source;
use tombolo_test_support::{Session, plain, wrapped};
use tombolo_vrpc_tests::made_up::Between;
use tombolo_vrpc_tests::site::{Plan, Site, client, root};
use tombolo_wire_vrpc::{Kind, Request as Vrpc};

/// Treatment of the writes that begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Writes {
    #[default]
    Performed,
    /// Performed when the test says so, and cannot be interrupted.
    Held,
    /// Never performed; answered when the test says so.
    Lost,
    /// Fail at once, for lack of space.
    Refused,
    /// Performed up to three bytes.
    Short,
}

/// The treatment of writes, changed by the test.
#[derive(Default)]
pub struct Valve(Mutex<State>);

#[derive(Default)]
struct State {
    writes: Writes,
    begun: usize,
    waiting: Vec<Waker>,
}

impl Valve {
    pub fn set(&self, writes: Writes) {
        let waiting = {
            let mut state = self.state();
            state.writes = writes;
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Returns the number of writes that have begun.
    pub fn begun(&self) -> usize {
        self.state().begun
    }

    fn begin(&self) -> Writes {
        let mut state = self.state();
        state.begun += 1;
        state.writes
    }

    async fn changed_from(&self, writes: Writes) {
        poll_fn(|context| {
            let mut state = self.state();
            if state.writes != writes {
                return Poll::Ready(());
            }
            state.waiting.push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no test panics here")
    }
}

/// A session whose writes are treated as the valve says.
struct Controlled {
    inner: Arc<dyn FileSystem>,
    valve: Arc<Valve>,
    is_prompt: bool,
}

impl FileSystem for Controlled {
    tombolo_core::forward!(to self.inner;
        profile lookup forget getattr setattr access readlink create create_unnamed mkdir symlink mknod link
        unlink rmdir rename open release flush fsync read readdir statfs syncfs
        xattrs locks persistent_handles ranges changes versions
    );

    fn is_prompt(&self, file: File) -> bool {
        self.is_prompt && self.inner.is_prompt(file)
    }

    fn write(&self, cx: &Ctx, file: File, how: &Write, mut from: Source) -> Answer<Written> {
        let (inner, valve, cx, how) = (self.inner.clone(), self.valve.clone(), cx.clone(), *how);
        match valve.begin() {
            Writes::Performed => inner.write(&cx, file, &how, from),
            Writes::Refused => Answer::err(Error::NoSpace),
            Writes::Short => {
                from.truncate(3);
                inner.write(&cx, file, &how, from)
            }
            Writes::Held => Answer::later(async move {
                valve.changed_from(Writes::Held).await;
                inner.write(&cx, file, &how, from).resolve().await
            }),
            Writes::Lost => Answer::later(async move {
                valve.changed_from(Writes::Lost).await;
                Err(Error::io("the server dies"))
            }),
        }
    }
}

/// Kinds of the requests received, and `true` for those that are quiet.
pub type Record = Arc<Mutex<Vec<(Kind, bool)>>>;

/// Properties of a world.
#[derive(Clone, Copy)]
pub struct Nature {
    pub plan: Plan,
    pub link_loss_policy: LinkLossPolicy,
    pub is_prompt: bool,
    pub writes_behind: bool,
}

impl Default for Nature {
    fn default() -> Self {
        let link_loss_policy = LinkLossPolicy::Hard;
        Self { plan: Plan::default(), link_loss_policy, is_prompt: true, writes_behind: true }
    }
}

/// A server, and a session of it.
pub struct World {
    pub site: Arc<Site>,
    pub valve: Arc<Valve>,
    pub record: Record,
    pub fs: Arc<VrpcFileSystem>,
    pub session: Session,
    nature: Nature,
}

impl World {
    pub fn new(nature: Nature) -> Self {
        let (site, valve, record) = (Site::new(nature.plan), Arc::<Valve>::default(), Record::default());
        let (controls, is_prompt) = (valve.clone(), nature.is_prompt);
        let export = wrapped(Arc::new(Memory::default()), move |inner| Controlled {
            inner,
            valve: controls.clone(),
            is_prompt,
        });
        let inner = VrpcServer::new().with_export("export", export, Options::default());
        let recorded = record.clone();
        let serve = move |session: &Arc<dyn LinkSession>, request: Request<'_>, responder: Responder| {
            let (header, decoded) = Vrpc::decode(request.kind, &request.body, request.frame).expect("honest");
            recorded.lock().expect("no panic").push((decoded.kind(), header.quiet));
            session.serve(request, responder);
        };
        site.start_any(Arc::new(Between(Arc::new(inner), Arc::new(serve))));
        let fs = Self::attach(&site, nature);
        Self { site, valve, record, session: Session::of(fs.clone()), fs, nature }
    }

    /// Returns a world with a file, whose writes are treated so.
    pub fn with_file(writes: Writes) -> (Self, File) {
        let world = Self::new(Nature::default());
        let file = world.create("file");
        world.settle();
        world.valve.set(writes);
        (world, file)
    }

    fn attach(site: &Arc<Site>, nature: Nature) -> Arc<VrpcFileSystem> {
        let export = site
            .export()
            .with_link_loss_policy(nature.link_loss_policy)
            .with_writes_behind(nature.writes_behind);
        export.attach_session(&client()).expect("a session")
    }

    /// Returns another session, of another client.
    pub fn another(&self) -> Session {
        Session::of(Self::attach(&self.site, self.nature))
    }

    pub fn create(&self, text: &str) -> File {
        self.session.file_as(text, &plain()).expect("created")
    }

    /// Writes at the beginning; `true` if the caller did not wait.
    pub fn writes_at_once(&self, file: File, bytes: &[u8]) -> bool {
        match self.fs.write(&root(), file, &Write::default(), Source::from(bytes.to_vec())) {
            Answer::Done(result) => {
                assert_eq!(result.expect("written").count, bytes.len());
                true
            }
            Answer::Later(_) => false,
        }
    }

    pub fn read(&self, file: File) -> Vec<u8> {
        self.session.read(file, 0, 128 << 10).expect("read")
    }

    /// Returns the requests since the last call, except those that a session makes by itself.
    pub fn requests(&self) -> Vec<(Kind, bool)> {
        let all = std::mem::take(&mut *self.record.lock().expect("no panic"));
        let by_itself = |kind| matches!(kind, Kind::Profile | Kind::Caller | Kind::Changes);
        all.into_iter().filter(|(kind, _)| !by_itself(*kind)).collect()
    }

    /// Waits until the server has answered everything.
    pub fn settle(&self) {
        self.fs.null(&root()).wait().expect("null");
        self.requests();
    }
}
