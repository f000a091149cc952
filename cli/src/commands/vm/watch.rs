//! Events of a VM's processes (readiness, ends and requests to stop), and the wait for the end of one
//! process. The supervisor has one [`Watch`], and each successor has another.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader};
use std::process::{Child, ChildStdout};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use tombolo_host_runtime::signals;
use tombolo_sys::{packet, process};

/// A process of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Memory,
    Disk,
    /// The server of a share.
    Share(usize),
    Vmm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Ready(Part),
    Ended(Part),
    /// Another VMM runs the guest, so the present one must end.
    Switch,
    /// A signal requests the end of all processes.
    Stop,
}

/// Timeout after a stop request for a server to flush, over a connection that may be down.
const STOP_PATIENCE: Duration = Duration::from_secs(15);

const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Queue of events. The threads of [`process`](Self::process) and [`output`](Self::output) send them.
pub struct Watch {
    sender: Sender<Event>,
    events: Receiver<Event>,
    /// Events that [`ready`](Self::ready) has received, for [`end`](Self::end) to return or skip.
    aside: RefCell<VecDeque<Event>>,
    /// Time limit for ends, set by the first stop request.
    stop_until: Cell<Option<Instant>>,
}

impl Watch {
    /// Creates a watch that turns signals into events from now on.
    pub fn new() -> io::Result<Self> {
        let watch = Self::without_signals();
        let stop = watch.sender();
        signals::on_stop(move |_| {
            let _ = stop.send(Event::Stop);
        })?;
        Ok(watch)
    }

    pub fn without_signals() -> Self {
        let (sender, events) = channel();
        Self { sender, events, aside: RefCell::default(), stop_until: Cell::default() }
    }

    pub fn sender(&self) -> Sender<Event> {
        self.sender.clone()
    }

    /// Starts a thread that reports the end of a process as an event.
    pub fn process(&self, part: Part, child: &Child) -> io::Result<()> {
        let (watched, ended) = (process::watched(child.id())?, self.sender.clone());
        let wait = move || {
            let _ = packet::wait(&watched);
            let _ = ended.send(Event::Ended(part));
        };
        thread::Builder::new().name("watch".into()).spawn(wait).map(drop)
    }

    /// Starts a thread that reports the readiness of a server as an event. The thread also reads the
    /// server's later output: a write without a reader would kill the server.
    pub fn output(&self, part: Part, output: ChildStdout) -> io::Result<()> {
        let ready = self.sender.clone();
        let read = move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if line.starts_with("ready control") {
                    let _ = ready.send(Event::Ready(part));
                }
            }
        };
        thread::Builder::new().name("output".into()).spawn(read).map(drop)
    }

    fn next(&self) -> Event {
        let event = self.events.recv().unwrap_or(Event::Stop);
        self.saw(event);
        event
    }

    fn saw(&self, event: Event) {
        if event == Event::Stop && self.stop_until.get().is_none() {
            self.stop_until.set(Some(Instant::now() + STOP_PATIENCE));
        }
    }

    /// Waits until a server is ready. Fails if that server ends first, or on a stop request; keeps other
    /// events.
    pub fn ready(&self, part: Part) -> Result<(), Event> {
        let is_ready = |event: &Event| *event == Event::Ready(part);
        while !self.aside.borrow().iter().any(is_ready) {
            let event = self.next();
            match event {
                Event::Stop => return Err(event),
                Event::Ended(which) if which == part => return Err(event),
                Event::Ready(_) | Event::Ended(_) | Event::Switch => {
                    self.aside.borrow_mut().push_back(event);
                }
            }
        }
        Ok(())
    }

    /// Returns the next event: the end of a process other than a share's server, a switch of VMMs, or a stop
    /// request.
    pub fn end(&self) -> Event {
        loop {
            let aside = self.aside.borrow_mut().pop_front();
            match aside.unwrap_or_else(|| self.next()) {
                // Without the server of a share a guest lacks only that share.
                Event::Ready(_) | Event::Ended(Part::Share(_)) => {}
                event => return event,
            }
        }
    }

    /// Returns `true` if a process ends in this time; without a limit, before the deadline of a stop request.
    /// Drops the events that arrive meanwhile, since it is called only once all processes are to end.
    pub fn ends(&self, child: &mut Child, within: Option<Duration>) -> bool {
        let until = within.map(|within| Instant::now() + within);
        while matches!(child.try_wait(), Ok(None)) {
            self.events.try_iter().for_each(|event| self.saw(event));
            if until.or(self.stop_until.get()).is_some_and(|until| Instant::now() > until) {
                return false;
            }
            thread::sleep(LOOK_EVERY);
        }
        true
    }
}
