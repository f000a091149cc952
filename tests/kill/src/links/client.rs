//! A client that performs one operation after the other until it is stopped or killed.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tombolo_back_local_dir::LocalDir;
use tombolo_back_vrpc_client::{Socket, VrpcExport};
use tombolo_core::SessionId;
use tombolo_core::fs::{Client, Export, FileSystem, PermissionCheck};
use tombolo_host_links::connect::ConnectOptions;
use tombolo_shm::doorbell::Mode as Doorbell;
use tombolo_shm::link::Incarnation;
use tombolo_sys::random;

use crate::args::{ClientArgs, rng};
use crate::failure::{Failure, Result, wrong};
use crate::load::{Kind, Load, Plan};
use crate::process::PATIENCE;

/// Bytes of the log: before an operation, and after it.
pub const BEGUN: u8 = b'b';
pub const ENDED: u8 = b'e';

/// Returns the plan of the client whose log has this path.
pub fn plan(seed: u64, log: &Path) -> Plan {
    let number = log.extension().and_then(|number| number.to_str()?.parse().ok()).unwrap_or(0);
    Plan::new(rng(seed, number), Kind::Link)
}

/// Performs operations until its standard input is closed, in a directory of the log's name.
pub fn work(args: &ClientArgs) -> Result<String> {
    let mut log = std::fs::File::options().create_new(true).append(true).open(&args.log)?;
    let name = args.log.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let mut load = Load::new(begin(args)?, name, plan(args.seed, &args.log))?;
    let enough = Arc::new(AtomicBool::new(false));
    let told = enough.clone();
    thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        told.store(true, Ordering::Relaxed);
    });
    while !enough.load(Ordering::Relaxed) {
        let step = load.plan.next();
        log.write_all(&[BEGUN])?;
        load.perform(step)?;
        log.write_all(&[ENDED])?;
    }
    load.release_all()?;
    Ok(format!("{} operations", load.steps))
}

/// Opens a session once there is a server: the harness may just have killed it.
fn begin(args: &ClientArgs) -> Result<Arc<dyn FileSystem>> {
    let until = Instant::now() + PATIENCE;
    loop {
        match if args.is_mount { on_mount(&args.at) } else { in_library(&args.at) } {
            Ok(fs) => return Ok(fs),
            Err(why) if Instant::now() > until => {
                return Err(Failure::Process(format!("the client cannot begin: {why}")));
            }
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Opens a mount, whose operations are system calls.
fn on_mount(root: &Path) -> Result<Arc<dyn FileSystem>> {
    let export = LocalDir::open(root, Default::default());
    attach(&export.or_else(|error| wrong(error.to_string()))?)
}

fn in_library(socket: &Path) -> Result<Arc<dyn FileSystem>> {
    let failed = |error: &dyn std::fmt::Display| Failure::Process(error.to_string());
    let mut incarnation = [0; 16];
    random::fill(&mut incarnation).map_err(|errno| failed(&errno))?;
    let options = ConnectOptions::new("/tree", "chaos", Incarnation(incarnation));
    let socket = Socket::new(socket, options.map_err(|error| failed(&error))?, Doorbell::default());
    attach(&VrpcExport::new(socket.map_err(|error| failed(&error))?))
}

fn attach(export: &dyn Export) -> Result<Arc<dyn FileSystem>> {
    let client = Client { session: SessionId(1), label: "chaos".into(), checks: PermissionCheck::BackEnd };
    export.attach(&client).or_else(|error| wrong(error.to_string()))
}
