//! LEASE of the side program (`docs/protocols/side.md`).

use std::sync::Arc;
use std::time::Duration;

use tombolo_core::fs::{AccessMask, LeaseAnswer, LeaseClient, LeaseRequest, LeaseTable};
use tombolo_wire_nfs3::Status;
use tombolo_wire_nfs3::side::{LeaseArgs, LeaseOk, LeaseOperation, LeaseReply, LeaseState};

use crate::caller::{CallTarget, Caller};
use crate::failure::{Failure, Result, reply};

/// Executes LEASE. A call that keeps a lease is answered after about a twentieth of the term, or earlier if
/// the lease is recalled, not held or renewed by another call, or if the server stops.
pub(crate) async fn lease(caller: &Caller<'_>, args: LeaseArgs<'_>) -> LeaseReply {
    let answered = async {
        let target = caller.target(args.file).await?;
        let leases = target.export.leases.clone().ok_or(Failure(Status::NotSupp))?;
        let client = caller.lease_client().ok_or(Failure(Status::Inval))?;
        if args.act == LeaseOperation::Grant {
            may_hold(caller, &target).await?;
        }
        // The target's node is not retained while the call waits.
        drop(target);
        Ok(request(leases, client, args).await)
    };
    reply(answered.await, ())
}

/// Checks that the client may hold a lease, and that its user may list and search the export's root.
async fn may_hold(caller: &Caller<'_>, target: &CallTarget) -> Result<()> {
    let export = &target.export;
    if !export.lease_holders.admits(caller.peer()) {
        tracing::debug!(peer = %caller.peer().origin, "lease refused: --leases does not name the client");
        return Err(Failure(Status::Perm));
    }
    let root = export.root().await?;
    let attr = export.attr(&root).await?;
    let wanted = AccessMask::READ | AccessMask::EXECUTE;
    let allowed = export.permissions.allowed(&target.cx, root.id, &attr, wanted).await?;
    if allowed.contains(wanted) { Ok(()) } else { Err(Failure(Status::Acces)) }
}

async fn request(leases: Arc<LeaseTable>, client: LeaseClient, args: LeaseArgs<'_>) -> LeaseOk {
    let request = match args.act {
        LeaseOperation::Grant => LeaseRequest::Grant,
        LeaseOperation::Keep => LeaseRequest::Keep(args.epoch),
        LeaseOperation::GiveBack => LeaseRequest::GiveBack(args.epoch),
    };
    match leases.ask(client, request).await {
        LeaseAnswer::Held { epoch, term } => of(LeaseState::Held, epoch, term),
        LeaseAnswer::Recalled => of(LeaseState::Recalled, args.epoch, Duration::ZERO),
        LeaseAnswer::NotHeld { after } => of(LeaseState::NotHeld, 0, after),
    }
}

fn of(state: LeaseState, epoch: u64, time: Duration) -> LeaseOk {
    LeaseOk { state, epoch, time_ms: u32::try_from(time.as_millis()).unwrap_or(u32::MAX) }
}
