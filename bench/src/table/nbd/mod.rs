//! `nbd`: a disk over NBD, Tombolo compared with nbdkit, over a UNIX socket.

mod client;

use std::path::Path;

use client::NbdClient;

use super::disk::{LARGE, fill};
use super::sides::{Side, measure};
use super::{Plan, folder};
use crate::error::Result;
use crate::guest::DiskRequests;
use crate::peer::{AtSocket, Program};
use crate::report::Report;
use crate::sheet::{Row, Sheet, sheet};

/// Name of the image, and of its export.
const EXPORT: &str = "disk.img";

pub fn run(plan: &Plan) -> Result<Report> {
    let sheet: Sheet<'_, Row<DiskRequests>> = sheet!(plan, "nbd")?;
    let disk_bytes = (sheet.number("mib") as u64) << 20;
    let sides = [Program::Tombolo, Program::Nbdkit].map(|program| side(program, &plan.disk, disk_bytes));
    measure(sheet, &plan.contest(), sides.into())
}

/// Starts a server with its own image, and a client.
fn side(program: Program, disk: &Path, disk_bytes: u64) -> Result<Side<DiskRequests>> {
    let place = folder(disk)?;
    let (image, socket) = (place.path().join(EXPORT), place.path().join("sock"));
    fill(&image, disk_bytes)?;
    let server = AtSocket::nbd(program, &image, &socket)?;
    let client = NbdClient::connect(server.socket(), EXPORT, LARGE)?;
    Ok(Side {
        column: program.name().to_owned(),
        variant: String::new(),
        place: None,
        server: server.server(),
        work: Box::new(move |requests| Ok(NbdClient::work(&client, requests))),
        _kept: Box::new((server, place)),
    })
}
