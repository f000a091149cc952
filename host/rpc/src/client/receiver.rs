//! Receiver thread of a client.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::engine::Engine;
use super::system_wire::SystemWire;
use super::wire::{Event, SocketToken};
use tombolo_host_runtime::polling::PollWindow;
use tombolo_sys::epoll;
use tombolo_sys::moment::Moment;

/// Delay after a failed wait, as when the kernel lacks memory.
const PAUSE: Duration = Duration::from_millis(5);

/// Number of polls of which one covers all events; the others read the connection directly if it is the only
/// one.
const POLLS: u32 = 8;

/// Starts the receiving thread, which ends with the last client.
pub(super) fn start(engine: Engine, wire: Arc<SystemWire>) -> io::Result<()> {
    let receiver = Receiver { engine, wire, events: Vec::new(), window: PollWindow::default() };
    thread::Builder::new().name("rpc-receiver".into()).spawn(move || receiver.run())?;
    Ok(())
}

struct Receiver {
    engine: Engine,
    wire: Arc<SystemWire>,
    events: Vec<epoll::Event>,
    window: PollWindow,
}

impl Receiver {
    fn run(mut self) {
        while !self.engine.has_ended() {
            let is_due = self.engine.next_deadline().is_some_and(|deadline| deadline <= Instant::now());
            if is_due {
                self.guarded(Engine::expire);
                self.poll_events(Some(Duration::ZERO));
            } else if !self.spin() {
                self.sleep();
            }
        }
    }

    /// Polls for events for as long as that pays. Returns `true` if there is work.
    fn spin(&mut self) -> bool {
        if !self.window.is_open() {
            return false;
        }
        let since = Moment::now();
        let mut polls = 0;
        while self.window.pause(since) {
            polls += 1;
            let found = self.engine.shared.alarm.is_raised()
                || match polls % POLLS {
                    0 => self.poll_events(Some(Duration::ZERO)),
                    _ => self.guarded(Engine::poll_once).unwrap_or(true),
                };
            if found {
                return true;
            }
        }
        false
    }

    fn sleep(&mut self) {
        let since = Moment::now();
        let shared = self.engine.shared.clone();
        shared.alarm.sleep(|| {
            let timeout = self.engine.next_deadline().map(|at| at.saturating_duration_since(Instant::now()));
            shared.counters.sleeps.increment();
            self.poll_events(timeout);
        });
        self.window.slept(since.elapsed());
    }

    /// Waits for events and handles them. Returns `true` if there were any.
    fn poll_events(&mut self, timeout: Option<Duration>) -> bool {
        let shared = self.engine.shared.clone();
        let Some(wakeup) = &shared.alarm.wakeup else { return false };
        if let Err(error) = self.wire.wait(&mut self.events, timeout, wakeup) {
            tracing::error!(%error, "epoll_wait failed");
            thread::sleep(PAUSE);
        }
        let events = std::mem::take(&mut self.events);
        for event in &events {
            let happened =
                Event { readable: event.readable || event.ended, writable: event.writable || event.ended };
            let token = SocketToken::from_number(event.token);
            self.guarded(|engine| {
                if event.finished || event.ended {
                    engine.finished(token);
                }
                engine.ready(token, happened);
            });
        }
        let any = !events.is_empty();
        self.events = events;
        any
    }

    /// Contains a panic of the engine, so that other calls are still answered.
    fn guarded<T>(&mut self, work: impl FnOnce(&mut Engine) -> T) -> Option<T> {
        let engine = &mut self.engine;
        let outcome = catch_unwind(AssertUnwindSafe(|| work(engine)));
        if outcome.is_err() {
            tracing::error!(callee = &*self.engine.shared.label, "receiver thread panicked");
        }
        outcome.ok()
    }
}
