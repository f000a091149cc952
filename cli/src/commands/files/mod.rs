//! `tombolo ls`, `cat`, `cp`, `mv`, `stat`, `du`, `mkdir` and `rm`: file commands on servers and this host,
//! without a mount.
//!
//! One module per command. Reading order: [`open_path`] (opening the locations of a command line), then the
//! commands; `shown` formats names, modes and times, `problem` failures.

mod cat;
mod cp;
mod du;
mod exports;
mod ls;
mod mkdir;
mod mv;
pub mod open_path;
pub mod problem;
mod rm;
pub mod shown;
mod stat;
pub mod stop;
pub mod user;

pub use cat::CatArgs;
pub use cp::CpArgs;
pub use du::DuArgs;
pub use ls::{LsArgs, print, print_json};
pub use mkdir::MkdirArgs;
pub use mv::MvArgs;
pub use open_path::own_name;
pub use rm::RmArgs;
pub use stat::StatArgs;
