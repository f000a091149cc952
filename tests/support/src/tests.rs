//! Tests as a table.

/// Makes a test of each line `name: body;`, for cases that differ in a few words only.
#[macro_export]
macro_rules! tests {
    ($($(#[$attribute:meta])* $name:ident: $body:expr;)*) => {
        $(
            $(#[$attribute])*
            #[test]
            fn $name() {
                $body;
            }
        )*
    };
}
