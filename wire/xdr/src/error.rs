//! Errors of decoding XDR.

/// The result of decoding.
pub type Result<T> = std::result::Result<T, Error>;

/// The reason why bytes are not a value of the requested type. It depends on the bytes and the type alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes end before the value does.
    #[error("message is {missing_bytes} bytes too short")]
    Short {
        /// Minimum number of missing bytes.
        missing_bytes: usize,
    },
    /// An opaque, a string or a list exceeds its limit.
    #[error("length {announced} exceeds the limit of {limit}")]
    TooLong {
        /// Length announced by the peer.
        announced: u32,
        /// Limit of the type.
        limit: usize,
    },
    /// A boolean is neither 0 nor 1 (RFC 4506 §4.4).
    #[error("invalid boolean {0}")]
    BadBool(u32),
    /// An undefined value of an enumeration or of a union's discriminant (RFC 4506 §4.3).
    #[error("invalid {name}: {value}")]
    BadEnum {
        /// Name of the enumeration, or of the union's discriminant.
        name: &'static str,
        /// The value found.
        value: u32,
    },
    /// Bytes follow the complete value.
    #[error("{extra_bytes} trailing bytes")]
    Trailing {
        /// Number of bytes behind the value.
        extra_bytes: usize,
    },
}
