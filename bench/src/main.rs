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
mod session;
mod sheet;
mod table;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;

use args::{BenchArgs, OwnArgs, TableArgs};
use error::{Doing, Error, Result};
use report::Report;
use sheet::part;
use table::{Part, Plan, wanted};

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
fn run(BenchArgs { table, plan }: &BenchArgs, out: &mut dyn Write) -> Result<()> {
    if let TableArgs::Own(own) = table {
        return run_own(plan, own, out);
    }
    // The permitted cores are recorded before any thread is pinned.
    let _all = measure::spare_cores();
    measure::end_on_signals()?;
    match table {
        TableArgs::All => all(plan, out),
        table => measured(plan, table, out),
    }
}

/// Runs the part of a table for which this process was started. Signals are not handled, so that they end a
/// server at once.
fn run_own(plan: &Plan, own: &OwnArgs, out: &mut dyn Write) -> Result<()> {
    match own {
        OwnArgs::Limit { limit, address } => nfs::serve(*limit, *address, &plan.within),
        OwnArgs::Drive(drive) => drive::drive(drive),
        OwnArgs::RingGuest { memory, link_bytes, client } => {
            table::ring::serve_orders(memory, *link_bytes, *client, out)
        }
        OwnArgs::Answer { address, name, seconds } => {
            table::gvfs::answered(*address, name, Duration::from_secs(*seconds))
        }
        OwnArgs::Postmark { folder, count, bytes_max, reads } => {
            let (files, transactions) = (*count, *count);
            files::Postmark { files, transactions, bytes_max: *bytes_max, reads: *reads }.run(folder)
        }
        OwnArgs::Calls { folder, seconds } => {
            table::vnfs::print_medians(folder, Duration::from_secs(*seconds), out)
        }
        OwnArgs::Touch { shared, count } => {
            let (memory_bytes, descriptors) = table::memory::touch(shared, *count)?;
            writeln!(out, "{memory_bytes} {descriptors}").doing(|| "print".to_owned())
        }
    }
}

/// Measures every table, in a quick run all but `guest-disk`; one that this machine cannot measure is
/// skipped.
fn all(plan: &Plan, out: &mut dyn Write) -> Result<()> {
    let (project, both) = ("lua".to_owned(), TableArgs::Fuse { virtio: true, mount: true });
    let tables = [TableArgs::Waist, both, TableArgs::Disk, TableArgs::Nbd, TableArgs::Memory];
    let guests = [TableArgs::Guest { project }, TableArgs::GuestDisk];
    let others = [TableArgs::Nfs, TableArgs::Ring, TableArgs::Vnfs, TableArgs::Gvfs, TableArgs::Atomic];
    for table in tables.into_iter().chain(guests).chain(others) {
        // The disks of a guest take minutes, and cover no more of the bench than the others.
        if !plan.quick || !matches!(table, TableArgs::GuestDisk) {
            measured(plan, &table, out)?;
        }
    }
    Ok(())
}

/// Measures the wanted parts of a table; publishes their reports, and the reasons for missing ones.
fn measured(plan: &Plan, table: &TableArgs, out: &mut dyn Write) -> Result<()> {
    let one = |name, part: Part| vec![(name, part)];
    let (name, parts) = match table {
        TableArgs::Waist => ("waist", one("", part!("waist", table::waist::run))),
        TableArgs::Ring => ("ring", wanted(table::ring::PARTS, &plan.only)?),
        TableArgs::Fuse { virtio, mount } => {
            let parts: [(&str, Part); 2] = [
                ("virtio", part!("virtio", table::sockets::virtio)),
                ("mount", part!("mount", table::mounts::fuse)),
            ];
            let is_named = [*virtio, *mount];
            let parts = parts.into_iter().zip(is_named).filter(|(_, it)| *it || is_named == [false; 2]);
            ("fuse", parts.map(|(part, _)| part).collect())
        }
        TableArgs::Guest { project } => {
            return publish_or_leave_out(plan, "guest", table::guest::run(plan, project), out);
        }
        TableArgs::Disk => ("disk", one("", part!("disk", table::sockets::disk))),
        TableArgs::Nbd => ("nbd", one("", part!("nbd", table::sockets::nbd))),
        TableArgs::GuestDisk => ("guest-disk", one("", part!("guest-disk", table::guest::disks))),
        TableArgs::Memory => ("memory", one("", part!("memory", table::memory::run))),
        TableArgs::Nfs => ("nfs", one("", |plan| table::nfs::run(plan, None))),
        TableArgs::Atomic => ("atomic", wanted(table::atomic::PARTS, &plan.only)?),
        TableArgs::Vnfs => ("vnfs", wanted(table::vnfs::PARTS, &plan.only)?),
        TableArgs::Gvfs => ("gvfs", wanted(table::gvfs::PARTS, &plan.only)?),
        TableArgs::All | TableArgs::Own(_) => return Ok(()),
    };
    if matches!(table, TableArgs::Nfs | TableArgs::Atomic) && !plan.here {
        return match nfs::run_inside(&BenchArgs::here(name)) {
            // Without permission for a new network namespace the present one is used, without the peer.
            Err(Error::Absent(reason)) if name == "nfs" => {
                publish(plan, &table::nfs::run(plan, Some(&reason))?, out)
            }
            Err(error @ Error::Absent(_)) => leave_out(name, &error, out),
            done => done,
        };
    }
    for (part, measure) in parts {
        publish_or_leave_out(plan, &format!("{name} {part}"), measure(plan), out)?;
    }
    Ok(())
}

/// Publishes a report, or reports that this machine cannot measure it.
fn publish_or_leave_out(plan: &Plan, what: &str, made: Result<Report>, out: &mut dyn Write) -> Result<()> {
    match made {
        Ok(report) => publish(plan, &report, out),
        Err(error @ Error::Absent(_)) => leave_out(what, &error, out),
        Err(error) => Err(error),
    }
}

fn leave_out(what: &str, error: &Error, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "left out: {}: {error}", what.trim()).doing(|| "print".to_owned())
}

fn publish(plan: &Plan, report: &Report, out: &mut dyn Write) -> Result<()> {
    // Incomplete reports are not published.
    measure::go_on()?;
    if let Some(folder) = &plan.out {
        report::write(report, folder)?;
    }
    let text = if plan.json {
        serde_json::to_string_pretty(report).doing(|| "encode the report".to_owned())? + "\n"
    } else {
        report.text()
    };
    let text = text + "\n";
    out.write_all(text.as_bytes()).doing(|| "print the report".to_owned())
}
