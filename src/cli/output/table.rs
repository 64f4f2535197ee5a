//! Tables as kubectl has them: no borders, three blanks between columns, capitals on top.

use comfy_table::{ContentArrangement, Table, presets};

/// Rows under headings; indented by `indent` blanks. Empty cells are shown as `-`.
pub fn table(indent: usize, headings: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(headings.to_vec());
    for row in rows {
        table.add_row(row.into_iter().map(|cell| if cell.is_empty() { "-".to_owned() } else { cell }));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 3));
    }
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(format!("{:indent$}{line}", "").trim_end());
        text.push('\n');
    }
    text
}

/// A size for people: at most three digits and a binary unit.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut whole = n;
    let mut rest = 0;
    while whole >= 1024 && unit + 1 < UNITS.len() {
        rest = whole % 1024;
        whole /= 1024;
        unit += 1;
    }
    let name = UNITS.get(unit).copied().unwrap_or_default();
    match (unit, whole) {
        (1.., ..10) => format!("{whole}.{} {name}", rest * 10 / 1024),
        _ => format!("{whole} {name}"),
    }
}

/// `1 voter`, `3 voters`.
pub fn count(n: usize, word: &str) -> String {
    if n == 1 { format!("1 {word}") } else { format!("{n} {word}s") }
}

/// Text broken at blanks so that no line is longer than `width`; each line indented by `indent`.
pub fn wrap(text: &str, indent: usize, width: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width.saturating_sub(indent) => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.iter().map(|line| format!("{:indent$}{line}", "")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_look_like_those_of_kubectl() {
        let rows = vec![vec!["a".to_owned(), String::new()], vec!["longer".to_owned(), "x".to_owned()]];
        assert_eq!(table(2, &["NAME", "B"], rows), "  NAME     B\n  a        -\n  longer   x\n");
    }

    #[test]
    fn sizes_are_short() {
        let sizes = [0, 1023, 1024, 20_480, 1_572_864, 2_147_483_648].map(bytes);
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "20 KiB", "1.5 MiB", "2.0 GiB"]);
    }

    #[test]
    fn long_text_is_wrapped() {
        assert_eq!(wrap("one two three four", 2, 11), "  one two\n  three\n  four");
    }
}
