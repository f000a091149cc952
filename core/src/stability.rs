//! Stability of written data.

/// Required or achieved stability of a write when it is answered (RFC 1813 §3.3.7, `stable_how`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stability {
    /// Nothing; a later fsync makes the data stable.
    #[default]
    Unstable,
    /// The data, and the metadata needed to find them.
    DataSync,
    /// The data and all attributes.
    FileSync,
}
