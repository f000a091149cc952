//! A client that sends one request after the other until it is stopped or killed.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::args::{ClientArgs, rng};
use crate::failure::{Failure, Result, refused};
use crate::links::doer::{self, Doer};
use crate::links::log::{History, Log};
use crate::links::model::Action;
use crate::links::records::record;
use crate::process::PATIENCE;

/// Performs requests until its standard input is closed.
pub fn work(args: &ClientArgs) -> Result<String> {
    let History { mut model, mut number, .. } = History::read(&args.log)?;
    let mut log = Log::open(&args.log)?;
    let mut random = rng(args.seed, number);
    let mut perform = begin(args)?;
    let enough = Arc::new(AtomicBool::new(false));
    let told = enough.clone();
    thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        told.store(true, Ordering::Relaxed);
    });
    let mut rest: Option<Action> = None;
    while !enough.load(Ordering::Relaxed) || rest.is_some() {
        number += 1;
        let action = rest.take().unwrap_or_else(|| model.choose(number, &mut random));
        log.asked(number, action)?;
        let count = match perform(action) {
            Ok(count) => count,
            Err(why) => return refused(format!("operation {number}, {action}"), why),
        };
        log.answered(number, count)?;
        model.apply(action, count);
        if let Action::Append(which, from) = action
            && from + count < record(which).len() as u64
        {
            rest = Some(Action::Append(which, from + count));
        }
    }
    Ok(format!("{number} requests so far"))
}

/// Opens a session once there is a server: the harness may just have killed it.
fn begin(args: &ClientArgs) -> Result<Doer> {
    let until = Instant::now() + PATIENCE;
    loop {
        match if args.is_mount { doer::on_mount(&args.at) } else { doer::in_library(&args.at) } {
            Ok(doer) => return Ok(doer),
            Err(why) if Instant::now() > until => {
                return Err(Failure::Process(format!("the client cannot begin: {why}")));
            }
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    }
}
