//! Comparison of the tables in `docs/protocols/fuse.md` with the codec.

use std::collections::BTreeMap;

use tombolo_wire_fuse::Opcode;
use tombolo_wire_fuse::init::Capabilities;

const DOCUMENT: &str = include_str!("../../../../docs/protocols/fuse.md");

/// Returns the rows of the first table after this heading: number to name, in lower case and without `_`.
fn rows(heading: &str) -> BTreeMap<u32, String> {
    let (_, section) = DOCUMENT.split_once(heading).expect("the heading is there");
    let table = section.lines().skip_while(|line| !line.starts_with('|')).skip(2);
    let mut rows = BTreeMap::new();
    for line in table.take_while(|line| line.starts_with('|')) {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let number = cells.next().and_then(|cell| cell.parse().ok()).expect("a row begins with a number");
        let name = cells.next().expect("then comes a name");
        assert_eq!(rows.insert(number, plain(name)), None, "{number} has two rows");
    }
    rows
}

/// Normalises a name: the kernel's header has `COPY_FILE_RANGE_64` for the codec's `CopyFileRange64`.
fn plain(name: &str) -> String {
    name.replace('_', "").to_ascii_lowercase()
}

#[test]
fn documented_operations_match_the_codec() {
    let known = Opcode::ALL.iter().map(|&opcode| (opcode as u32, plain(opcode.name())));
    assert_eq!(rows("\n## Operations\n"), known.collect());
}

#[test]
fn documented_capabilities_match_the_codec() {
    let all = Capabilities::all();
    let known = all.iter_names().map(|(name, flag)| (flag.bits().trailing_zeros(), plain(name)));
    assert_eq!(rows("\n## INIT\n"), known.collect());
}
