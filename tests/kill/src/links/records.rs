//! The log in the tree: a file to which one writer appends records.

use crate::failure::{Failure, Result};
use crate::links::model::{Action, Model};

/// Returns the record of a number: the only `R` begins it and the only newline ends it.
pub fn record(number: u64) -> Vec<u8> {
    let len = 24 + (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % 3000;
    let mut bytes = format!("R{number:08}:").into_bytes();
    bytes.extend((0..len).map(|at| b"0123456789abcdef"[((number ^ at) % 16) as usize]));
    bytes.push(b'\n');
    bytes
}

/// Checks that answered records appear once and in order, and unanswered ones at most once.
pub fn check(bytes: &[u8], model: &Model) -> Result<()> {
    let doubted = |action: &Action| match action {
        Action::Append(number, from) => Some(record(*number).split_off(*from as usize)),
        _ => None,
    };
    let mut doubts: Vec<Vec<u8>> = model.doubts.iter().filter_map(doubted).collect();
    let mut rest = bytes;
    for (number, from, count) in &model.records {
        let whole = record(*number);
        let expected = whole.get(*from as usize..(from + count) as usize).unwrap_or_default();
        while !rest.starts_with(expected) {
            rest = skip_doubted(rest, &mut doubts).ok_or_else(|| {
                let at = bytes.len() - rest.len();
                let there = String::from_utf8_lossy(rest.get(..24).unwrap_or(rest)).into_owned();
                Failure::Tree(format!(
                    "byte {at}: record {number} from its byte {from} is not there, but {there:?}"
                ))
            })?;
        }
        rest = &rest[expected.len()..];
    }
    while !rest.is_empty() {
        rest = skip_doubted(rest, &mut doubts).ok_or_else(|| {
            let there = String::from_utf8_lossy(rest.get(..24).unwrap_or(rest)).into_owned();
            Failure::Tree(format!("{} bytes after the last record: {there:?}", rest.len()))
        })?;
    }
    Ok(())
}

/// Passes over an unanswered append: all of it, or the part written before the server was killed.
fn skip_doubted<'a>(rest: &'a [u8], doubts: &mut Vec<Vec<u8>>) -> Option<&'a [u8]> {
    let common = |doubt: &Vec<u8>| doubt.iter().zip(rest).take_while(|(one, other)| one == other).count();
    let (at, len) = doubts.iter().map(common).enumerate().max_by_key(|(_, len)| *len)?;
    if len == 0 {
        return None;
    }
    doubts.swap_remove(at);
    rest.get(len..)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(records: &[u64], doubts: &[u64]) -> Model {
        let mut model = Model::default();
        for number in records {
            model.apply(Action::Append(*number, 0), record(*number).len() as u64);
        }
        doubts.iter().for_each(|number| model.doubt(Action::Append(*number, 0)));
        model
    }

    #[test]
    fn records_appear_once_and_in_order() {
        let all = |numbers: &[u64]| numbers.iter().flat_map(|number| record(*number)).collect::<Vec<u8>>();
        check(&all(&[1, 2, 3]), &model(&[1, 2, 3], &[])).expect("as it was answered");
        for wrong in [&[1, 3][..], &[1, 2, 2, 3], &[1, 3, 2], &[1, 2, 3, 3], &[1, 2, 3, 4]] {
            check(&all(wrong), &model(&[1, 2, 3], &[])).expect_err("not as it was answered");
        }
        for good in [&[1, 2, 3][..], &[1, 9, 2, 3], &[1, 2, 3, 9]] {
            check(&all(good), &model(&[1, 2, 3], &[9])).expect("once, or never");
        }
        check(&all(&[1, 9, 2, 9, 3]), &model(&[1, 2, 3], &[9])).expect_err("twice");
        let torn = [record(1), record(9)[..5].to_vec(), record(2)].concat();
        check(&torn, &model(&[1, 2], &[9])).expect("the server was killed in it");
    }
}
