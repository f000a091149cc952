//! Cases worth a name.
