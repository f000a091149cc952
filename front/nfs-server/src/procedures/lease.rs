//! LEASE of the side program (`docs/protocols/side.md`).

use std::time::Duration;

use tombolo_core::fs::{LeaseAnswer, LeaseAsk};
use tombolo_wire_nfs3::side::{LeaseAct, LeaseArgs, LeaseOk, LeaseReply, LeaseState};
use tombolo_wire_nfs3::{Reply, Status};

use crate::caller::Caller;
use crate::failure::Failure;

/// LEASE. One that keeps a lease is answered when that is recalled.
pub(crate) async fn lease(caller: &Caller<'_>, args: LeaseArgs<'_>) -> LeaseReply {
    let leases = match caller.target(args.file).await {
        Ok(target) => target.export.leases.clone(),
        Err(Failure(status)) => return Reply::Failed(status, ()),
    };
    let Some(leases) = leases else { return Reply::Failed(Status::NotSupp, ()) };
    let client = caller.lease_client();
    // Without a stamp it could not be told from others at its address.
    if client.1 == 0 {
        return Reply::Failed(Status::Inval, ());
    }
    let ask = match args.act {
        LeaseAct::Grant => LeaseAsk::Grant,
        LeaseAct::Keep => LeaseAsk::Keep(args.epoch),
        LeaseAct::GiveBack => LeaseAsk::GiveBack(args.epoch),
    };
    Reply::Ok(match leases.ask(client, ask).await {
        LeaseAnswer::Held { epoch, term } => of(LeaseState::Held, epoch, term),
        LeaseAnswer::Recalled => of(LeaseState::Recalled, args.epoch, Duration::ZERO),
        LeaseAnswer::NotHeld { after } => of(LeaseState::NotHeld, 0, after),
    })
}

fn of(state: LeaseState, epoch: u64, time: Duration) -> LeaseOk {
    LeaseOk { state, epoch, time_ms: u32::try_from(time.as_millis()).unwrap_or(u32::MAX) }
}
