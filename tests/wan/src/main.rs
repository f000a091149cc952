//! `tombolo-wan PROFILE`: creates a link, prints how to run programs at its ends, and keeps it until its
//! input ends. `down` and `up` on the input interrupt and restore it.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it is a program for people and scripts")]

use std::io::{self, BufRead};
use std::process::ExitCode;

use tombolo_wan::{Profile, Wan};

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    let Some(profile) = Profile::named(&name) else {
        let all: Vec<_> = Profile::ALL.iter().map(|profile| profile.name).collect();
        eprintln!("usage: tombolo-wan PROFILE, one of {}", all.join(", "));
        return ExitCode::from(2);
    };
    let wan = match Wan::new(&profile) {
        Ok(wan) => wan,
        Err(error) => {
            eprintln!("tombolo-wan: cannot create the link: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("near {} {}", wan.near().namespace(), wan.near().address());
    println!("far {} {}", wan.far().namespace(), wan.far().address());
    println!(
        "ready: nsenter --net=/run/netns/NAMESPACE COMMAND; down and up cut the line and join it; the end of input ends it"
    );
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        match line.trim() {
            "down" => wan.set_down(true),
            "up" => wan.set_down(false),
            "late" => println!("late {:.4}", wan.late()),
            _ => {}
        }
    }
    ExitCode::SUCCESS
}
