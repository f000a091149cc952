//! `tombolo-bench`: interleaved measurements of Tombolo, its peers and the limits of the machine.
//!
//! One module per table ([`table`]); each creates a [`report::Report`], which is printed as tables and stored
//! as JSON. No time is asserted: a figure is printed with its target, met or missed.
//!
//! Non-goals: correctness (covered by tests) and micro-benchmarks of single functions.
//!
//! Reading order: [`measure`] (method), [`peer`] (measured programs), [`files`] and [`guest`] (operations),
//! [`table`], [`report`].
#![forbid(unsafe_code)]

mod args;
mod drive;
mod error;
mod files;
mod guest;
mod measure;
mod nfs;
mod peer;
mod report;
mod table;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;

use args::{AtomicArgs, BenchArgs, GvfsArgs, NfsArgs, RingArgs, TableArgs, VnfsArgs};
use error::{Doing, Error, Result};
use report::Report;
use table::Plan;
use table::guest::Wanted as GuestJob;

fn main() -> ExitCode {
    match run(&BenchArgs::parse(), &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If this fails too, the exit code must suffice.
            let _unread = writeln!(io::stderr(), "tombolo-bench: cannot measure: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the command line, and prints to `out`.
fn run(args: &BenchArgs, out: &mut dyn Write) -> Result<()> {
    if let TableArgs::Limit { limit, address } = &args.table {
        // Servers end immediately on signals.
        return nfs::serve(*limit, *address, &args.within);
    }
    if let TableArgs::Drive(drive) = &args.table {
        return drive::drive(drive);
    }
    if let TableArgs::RingServer { shared, folder, kind } = &args.table {
        return table::ring::serve(shared, folder, *kind);
    }
    if let TableArgs::RingIdle { kind, path, mode } = &args.table {
        return table::ring::idle(*kind, path.clone(), *mode, std::io::stdin().lock(), out);
    }
    if let TableArgs::RingGuest { memory, link_bytes, client } = &args.table {
        return table::ring::serve_orders(memory, *link_bytes, *client, out);
    }
    if let TableArgs::Answer { address, name, seconds } = &args.table {
        return table::gvfs::answered(*address, name, Duration::from_secs(*seconds));
    }
    // Recorded before anything is pinned.
    let _all = measure::spare_cores();
    measure::end_on_signals()?;
    let plan = args.plan();
    match &args.table {
        TableArgs::All => all(args, &plan, out),
        TableArgs::Waist => publish(args, &table::waist::run(&plan)?, out),
        TableArgs::Ring(ring) => run_ring(args, ring, &plan, out),
        TableArgs::Fuse(which) => {
            for (table, wanted) in FUSE_TABLES.into_iter().zip(which.tables()) {
                if wanted {
                    publish(args, &table(&plan)?, out)?;
                }
            }
            Ok(())
        }
        TableArgs::Guest { source, only, place, xattrs } => {
            let wanted = GuestJob { source, columns: only, places: place, xattrs: *xattrs };
            publish(args, &table::guest::run(&plan, &wanted)?, out)
        }
        TableArgs::Disk { disk } => publish(args, &table::disk::run(&plan, disk)?, out),
        TableArgs::Nbd { disk } => publish(args, &table::nbd::run(&plan, disk)?, out),
        TableArgs::GuestDisk { disk } => publish(args, &table::guest_disk::run(&plan, disk)?, out),
        TableArgs::Memory => publish(args, &table::memory::run(&plan)?, out),
        TableArgs::Nfs(nfs) => run_nfs(args, nfs, &plan, out),
        TableArgs::Atomic(atomic) => run_atomic(args, atomic, &plan, out),
        TableArgs::Vnfs(vnfs) => run_vnfs(args, vnfs, &plan, out),
        TableArgs::Gvfs(gvfs) => run_gvfs(args, gvfs, &plan, out),
        TableArgs::Postmark { folder, files } => {
            let (files, transactions) = (*files, *files);
            files::Postmark { files, transactions, bytes_max: 9_700, reads: 1 }.run(folder)
        }
        // Handled above.
        TableArgs::Limit { .. }
        | TableArgs::Answer { .. }
        | TableArgs::Drive(_)
        | TableArgs::RingServer { .. }
        | TableArgs::RingIdle { .. }
        | TableArgs::RingGuest { .. } => Ok(()),
        TableArgs::Touch { shared, files } => {
            let (memory_bytes, descriptors) = table::memory::touch(shared, *files)?;
            writeln!(out, "{memory_bytes} {descriptors}").doing(|| "print".to_owned())
        }
    }
}

type Table = fn(&Plan) -> Result<Report>;

const FUSE_TABLES: [Table; 2] = [table::virtio::run, table::mount::run];

/// Measures every table; one that this machine cannot measure is skipped.
fn all(args: &BenchArgs, plan: &Plan, out: &mut dyn Write) -> Result<()> {
    let [virtio, mount] = FUSE_TABLES;
    let guest: Table = |plan| table::guest::run(plan, &GuestJob::new("lua"));
    let disk: Table = |plan| table::disk::run(plan, Path::new(args::DISK));
    let nbd: Table = |plan| table::nbd::run(plan, Path::new(args::DISK));
    for table in [table::waist::run as Table, virtio, mount, disk, nbd, table::memory::run, guest] {
        publish_or_leave_out(args, "", table(plan), out)?;
    }
    // Takes minutes and covers no more of the bench than the others.
    if !plan.quick {
        let made = table::guest_disk::run(plan, Path::new(args::DISK));
        publish_or_leave_out(args, "", made, out)?;
    }
    run_nfs(args, &NfsArgs::default(), plan, out)?;
    run_ring(args, &RingArgs::default(), plan, out)?;
    run_vnfs(args, &VnfsArgs::default(), plan, out)?;
    run_gvfs(args, &GvfsArgs::default(), plan, out)?;
    match run_atomic(args, &AtomicArgs::default(), plan, out) {
        Err(error @ Error::Absent(_)) => writeln!(out, "left out: {error}").doing(|| "print".to_owned()),
        done => done,
    }
}

/// Measures the parts of the table of links; one that this machine cannot measure is skipped.
fn run_ring(args: &BenchArgs, ring: &RingArgs, plan: &Plan, out: &mut dyn Write) -> Result<()> {
    table::ring::run(plan, &ring.only, |part, made| {
        publish_or_leave_out(args, &format!("ring, {part}: "), made, out)
    })
}

/// Measures the parts of the table of notified caches; one that this machine cannot measure is skipped.
fn run_vnfs(args: &BenchArgs, vnfs: &VnfsArgs, plan: &Plan, out: &mut dyn Write) -> Result<()> {
    table::vnfs::run(plan, vnfs, |part, made| {
        publish_or_leave_out(args, &format!("vnfs, {part}: "), made, out)
    })
}

/// Measures the parts of the table of the caching proxy; one that this machine cannot measure is skipped.
fn run_gvfs(args: &BenchArgs, gvfs: &GvfsArgs, plan: &Plan, out: &mut dyn Write) -> Result<()> {
    table::gvfs::run(plan, gvfs, |part, made| {
        publish_or_leave_out(args, &format!("gvfs, {part}: "), made, out)
    })
}

/// Measures the NFS server by rerunning this program in a new network namespace; if that is not permitted,
/// measures in the present one without the peer.
fn run_nfs(args: &BenchArgs, which: &NfsArgs, plan: &Plan, out: &mut dyn Write) -> Result<()> {
    if which.here {
        return publish(args, &table::nfs::run(plan, &which.only, None)?, out);
    }
    match nfs::run_inside(&args.here("nfs", &which.only, None), out) {
        Err(Error::Absent(reason)) => publish(args, &table::nfs::run(plan, &which.only, Some(&reason))?, out),
        done => done,
    }
}

/// Measures the NFS client by rerunning this program in new network namespaces.
fn run_atomic(args: &BenchArgs, atomic: &AtomicArgs, plan: &Plan, out: &mut dyn Write) -> Result<()> {
    if atomic.here {
        return table::atomic::run(plan, atomic, out, |report, out| publish(args, report, out));
    }
    nfs::run_inside(&args.here("atomic", &atomic.only, Some(&atomic.disk)), out)
}

/// Publishes a report, or reports that this machine cannot measure it. `what` precedes the reason.
fn publish_or_leave_out(
    args: &BenchArgs,
    what: &str,
    made: Result<Report>,
    out: &mut dyn Write,
) -> Result<()> {
    match made {
        Ok(report) => publish(args, &report, out),
        Err(error @ Error::Absent(_)) => {
            writeln!(out, "left out: {what}{error}").doing(|| "print".to_owned())
        }
        Err(error) => Err(error),
    }
}

fn publish(args: &BenchArgs, report: &Report, out: &mut dyn Write) -> Result<()> {
    // Incomplete reports are not published.
    measure::go_on()?;
    if let Some(folder) = &args.out {
        report::write(report, folder)?;
    }
    let text = if args.json {
        serde_json::to_string_pretty(report).doing(|| "encode the report".to_owned())? + "\n"
    } else {
        report.text()
    };
    let text = text + "\n";
    out.write_all(text.as_bytes()).doing(|| "print the report".to_owned())
}
