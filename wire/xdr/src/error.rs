//! What can be wrong with bytes.

/// The result of decoding.
pub type Result<T> = std::result::Result<T, Error>;

/// Why bytes are not the value that was asked for. Only the bytes are at fault, never the state of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes end before the value does.
    #[error("message is {missing_bytes} bytes too short")]
    Short {
        /// How many are missing at least.
        missing_bytes: usize,
    },
    /// An opaque, a string or a list is longer than its type allows.
    #[error("length {announced} exceeds the limit of {limit}")]
    TooLong {
        /// What the peer announced.
        announced: u32,
        /// What the type allows.
        limit: usize,
    },
    /// A boolean is neither 0 nor 1 (RFC 4506 §4.4).
    #[error("invalid boolean {0}")]
    BadBool(u32),
    /// An enumeration or the arm of a union has a value that its type does not name (RFC 4506 §4.3).
    #[error("invalid {name}: {value}")]
    BadEnum {
        /// The type.
        name: &'static str,
        /// What was found.
        value: u32,
    },
    /// The value is complete, and bytes follow that belong to nothing.
    #[error("{extra_bytes} trailing bytes")]
    Trailing {
        /// How many.
        extra_bytes: usize,
    },
}
