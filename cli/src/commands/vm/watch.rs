//! What happens to the processes of a VM: which can be used, which has ended, and that all are to end. One
//! that does not end in time is killed.

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
    /// Another VMM runs the guest: the present one is to end.
    Switch,
    /// A signal has asked for the end of all.
    Stop,
}

/// Once all are to end: for a server that has to make durable what it has, on a line that may be cut.
const STOP_PATIENCE: Duration = Duration::from_secs(15);

const LOOK_EVERY: Duration = Duration::from_millis(5);

pub struct Watch {
    sender: Sender<Event>,
    events: Receiver<Event>,
    /// What came while something else was waited for.
    aside: RefCell<VecDeque<Event>>,
    stop_until: Cell<Option<Instant>>,
}

impl Watch {
    /// Makes one for which a signal is an event from now on.
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

    /// Tells of the end of a process.
    pub fn process(&self, part: Part, child: &Child) -> io::Result<()> {
        let (watched, ended) = (process::watched(child.id())?, self.sender.clone());
        let wait = move || {
            let _ = packet::wait(&watched);
            let _ = ended.send(Event::Ended(part));
        };
        thread::Builder::new().name("watch".into()).spawn(wait).map(drop)
    }

    /// Tells when a server says that it can be used. What it says later is read too: it would be ended by it
    /// if there was no reader.
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

    /// Waits until a server can be used. What has happened instead, if something has.
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

    /// Waits for the end of a process, or of all. Not for that of a share's server.
    pub fn end(&self) -> Event {
        loop {
            let aside = self.aside.borrow_mut().pop_front();
            match aside.unwrap_or_else(|| self.next()) {
                // Without the server of a share a guest lacks what it has mounted of that, and nothing else.
                Event::Ready(_) | Event::Ended(Part::Share(_)) => {}
                event => return event,
            }
        }
    }

    /// Whether a process ends in this time. Without one it has all the time that it needs, until all are to
    /// end.
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
