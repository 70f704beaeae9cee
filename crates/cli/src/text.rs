//! Text for terminals: tables, sizes, and escaping of what guests and images say.

/// The text with control characters, and those that turn the direction of writing, as escapes: it stays on its line
/// and cannot drive a terminal.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if is_harmful(character) { out.extend(character.escape_default()) } else { out.push(character) }
    }
    out
}

/// JSON with the same characters as JSON's own escapes. `serde_json` leaves DEL and U+0080 to U+009F, some of which
/// start a terminal's commands; in compact JSON such characters are inside strings only.
pub(crate) fn escape_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for character in json.chars() {
        if is_harmful(character) { out += &format!("\\u{:04x}", u32::from(character)) } else { out.push(character) }
    }
    out
}

/// All of them lie in the Basic Multilingual Plane.
fn is_harmful(character: char) -> bool {
    character.is_control() || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Like [`escape`] for a stream of bytes, which keeps its lines and tabs. Bytes that are not UTF-8 become U+FFFD.
pub(crate) fn escape_stream(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for character in String::from_utf8_lossy(bytes).chars() {
        match character {
            '\n' | '\t' => out.push(character),
            character if is_harmful(character) => out.extend(character.escape_default()),
            character => out.push(character),
        }
    }
    out
}

/// Rows of cells as lines that start with `indent`, each column as wide as its widest cell. The last cell of a row may
/// be as long as it likes.
pub(crate) fn table<const N: usize>(indent: &str, rows: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for (column, width) in widths.iter_mut().enumerate() {
        *width = rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    }
    let mut out = String::new();
    for row in rows {
        let mut line = String::from(indent);
        for (cell, width) in row.iter().zip(widths) {
            line += &format!("{cell:width$}  ");
        }
        out += line.trim_end();
        out.push('\n');
    }
    out
}

/// A paragraph in lines of at most 100 columns, the first after `bullet`, the others under its text.
pub(crate) fn wrap(bullet: &str, text: &str) -> String {
    const COLUMNS: usize = 100;
    let indent = bullet.chars().count();
    let (mut out, mut column) = (bullet.to_owned(), indent);
    for word in text.split(' ') {
        let width = word.chars().count();
        if column > indent && column + 1 + width > COLUMNS {
            out += &format!("\n{:indent$}", "");
            column = indent;
        } else if column > indent {
            out.push(' ');
            column += 1;
        }
        out += word;
        column += width;
    }
    out + "\n"
}

/// A number of bytes as people read it: `512 bytes`, `4 KiB`, `1.5 MiB`.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} byte{}", if bytes == 1 { "" } else { "s" });
    }
    let unit = ((bytes.ilog2() / 10) as usize).min(UNITS.len());
    let scaled = bytes as f64 / (1u64 << (10 * unit)) as f64;
    let rounded = format!("{scaled:.1}");
    format!("{} {}", rounded.strip_suffix(".0").unwrap_or(&rounded), UNITS[unit - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_drives_the_terminal() {
        assert_eq!(escape("ä\u{1b}[31m\r\n\u{9b}2J\u{202e}"), "ä\\u{1b}[31m\\r\\n\\u{9b}2J\\u{202e}");
        assert_eq!(escape_stream(b"a\tb\n\x1b[2J\xff"), "a\tb\n\\u{1b}[2J\u{fffd}");
    }

    #[test]
    fn escaped_json_is_the_same_json() {
        let value = serde_json::json!({ "k\u{7f}": "\u{9b}\u{202e}\n\"" });
        let text = escape_json(&value.to_string());
        assert!(!text.chars().any(is_harmful), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [["a", "bb", "c c"], ["dä", "", "e"]].map(|row| row.map(str::to_owned));
        assert_eq!(table("  ", &rows), "  a   bb  c c\n  dä      e\n");
    }

    #[test]
    fn paragraphs_are_wrapped_between_words() {
        let words = ["word"; 40].join(" ");
        let text = wrap("- ", &words);
        assert!(
            text.starts_with("- word word") && text.lines().skip(1).all(|line| line.starts_with("  word")),
            "{text}"
        );
        assert!(text.lines().all(|line| line.len() <= 100), "{text}");
        assert_eq!(text.split_whitespace().skip(1).collect::<Vec<_>>().join(" "), words);
        assert_eq!(wrap("- ", &"x".repeat(200)).lines().count(), 1);
    }

    #[test]
    fn sizes_are_short() {
        let cases = [(0, "0 bytes"), (1, "1 byte"), (1023, "1023 bytes"), (1024, "1 KiB"), (1536, "1.5 KiB")];
        for (bytes, want) in cases.into_iter().chain([(64 << 20, "64 MiB"), (u64::MAX, "16777216 TiB")]) {
            assert_eq!(size(bytes), want);
        }
    }
}
