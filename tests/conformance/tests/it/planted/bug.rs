/// Planted misbehaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// `O_APPEND` is not heeded: records of several writers overwrite each other.
    AppendIgnored,
    /// One forget drops all look-ups: the node vanishes while its holder still counts on it.
    ForgetDropsAll,
    /// Forgets are lost: nodes pile up.
    ForgetIgnored,
    /// An exchange moves one name and drops the other.
    ExchangeOneWay,
    /// A rename with `NO_REPLACE` replaces its target.
    NoReplaceIgnored,
    /// A directory cookie is a position: removals make a listing skip names.
    CookieByIndex,
    /// New files get the bits that their maker masked off.
    UmaskIgnored,
    /// Every read reports the end of the file.
    EofTooEarly,
    /// Removing the last name of an open file discards its contents.
    UnlinkLosesData,
    /// Any exclusive create with a verifier succeeds.
    VerifierIgnored,
    /// A guarded setattr is done although the guard does not hold.
    GuardIgnored,
    /// Attributes are remembered, and never looked at again.
    StaleAttributes,
    /// A write across a page boundary claims more than it wrote.
    TornWrite,
    /// Released openings keep their locks.
    ReleaseForgotten,
    /// All that is made belongs to the superuser.
    OwnerForgotten,
    /// A write leaves set-user-id in place.
    PrivilegesKept,
}
