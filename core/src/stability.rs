//! How stable written data are.

/// How stable a write must be before it is answered (RFC 1813 §3.3.7, `stable_how`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stability {
    /// Not at all; a later fsync makes it so.
    #[default]
    Unstable,
    /// The data, and what is needed to find it.
    DataSync,
    /// Data and all attributes.
    FileSync,
}
