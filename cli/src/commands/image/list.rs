//! `tombolo image list`: lists the images of a catalogue.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, Value, json};

use super::catalogue::{Catalogue, Entry, Property, shown_of};
use crate::commands::files::open_path::WaitArgs;
use crate::commands::files::{print, print_json};
use crate::failure::Outcome;
use crate::table::table;

/// List the images in a directory's catalogue, which `tombolo clone --needs` searches.
///
/// The catalogue is the file catalogue.toml in the directory of the images, written by hand: `version = 1`,
/// and for each image a table `[[image]]` with its name (that of its subdirectory) and properties, such as
/// `name = "debian-gcc"`, `os = "debian"`, `mem = "512M"`, `disk = "8G"`, `cpus = 2`,
/// `app = ["gcc", "make"]`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ImageListArgs {
    /// Directory or URL.
    #[arg(value_name = "DIR|URL")]
    dir: PathBuf,
    /// Print JSON; amounts are in bytes, except cpus.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    wait: WaitArgs,
}

const EXAMPLES: &str = "\
Examples:
  tombolo image list nfs://ship/images
  tombolo image list --json /srv/images | jq '.[].name'";

/// Properties with their own column.
const COLUMNS: [&str; 4] = ["os", "mem", "disk", "cpus"];

impl ImageListArgs {
    pub fn run(&self) -> Outcome {
        self.wait.limit_all();
        let Catalogue { images, .. } = Catalogue::in_dir(&self.dir)?;
        if self.json {
            return print_json(&images.iter().map(as_json).collect::<Vec<_>>());
        }
        let header = ["NAME", "OS", "MEM", "DISK", "CPUS", "HAS"];
        print(&table(&header, images.iter().map(row), header.len()))
    }
}

fn row(entry: &Entry) -> Vec<String> {
    let of = |key: &str| entry.properties.get(key).map_or_else(|| "-".into(), |has| shown_of(key, has));
    let others = entry.properties.iter().filter(|(key, _)| !COLUMNS.contains(&key.as_str()));
    let others: Vec<_> = others.map(|(key, has)| format!("{key}={}", shown_of(key, has))).collect();
    [entry.name.clone()].into_iter().chain(COLUMNS.map(of)).chain([others.join(" ")]).collect()
}

fn as_json(entry: &Entry) -> Value {
    let properties = entry.properties.iter().map(|(key, has)| {
        let value = match has {
            Property::Amount(amount) => json!(amount),
            Property::Word(word) => json!([word]),
            Property::Words(words) => json!(words),
        };
        (key.clone(), value)
    });
    json!({ "name": entry.name, "properties": properties.collect::<Map<_, _>>() })
}
