//! Plain-text tables: columns separated by two spaces, without rules.

/// Formats a table. Columns from `first_number` on are right-aligned.
pub fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>, first_number: usize) -> String {
    let mut lines: Vec<Vec<String>> = vec![header.iter().map(ToString::to_string).collect()];
    lines.extend(rows);
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<_> = (0..header.len()).map(|column| width(column).unwrap_or(0)).collect();
    let written = lines.iter().map(|line| {
        let cells = line.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if column < first_number { format!("{cell:width$}") } else { format!("{cell:>width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    });
    written.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_left_and_numbers_right() {
        let rows = [vec!["µs".into(), "1000".into()], vec!["lookup".into(), "1".into()]];
        assert_eq!(table(&["what", "n"], rows, 1), "what       n\nµs      1000\nlookup     1");
    }
}
