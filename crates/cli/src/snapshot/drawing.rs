//! The memory map of a snapshot, drawn. Pure: runs in, text out.

use std::fmt::Write as _;

use coracle::store::PAGE_BYTES;

use super::runs::{Kind, Run, count};
use crate::text;

/// What is drawn.
pub(super) struct Map<'a> {
    /// Pages with content, ascending.
    pub(super) runs: &'a [Run],
    /// The end of the pages that are drawn; those without content are zero.
    pub(super) end: u32,
}

/// Rows that are not exceeded: each cell stands for more pages then.
const TEXT_ROWS: u32 = 12;
const PICTURE_ROWS: u32 = 24;
const PICTURE_COLUMNS: u32 = 64;

const CELL: u32 = 12; // Its side in the picture.
const MARGIN: u32 = 24;
const HEAD: u32 = 72;
const FOOT: u32 = 56;

/// Without variables, which not every viewer of SVG knows. The background is part of the picture, so that it can be read
/// on any page.
const STYLE: &str = "\
text{font:14px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1f2328}\
text.title{font-size:18px;font-weight:600}text.faint{fill:#59636e}.back{fill:#fff}\
.zero{fill:#e8ecf0}.shared{fill:#54aeff}.own{fill:#bc4c00}\
@media(prefers-color-scheme:dark){text{fill:#f0f6fc}text.faint{fill:#9198a1}.back{fill:#0d1117}\
.zero{fill:#262c36}.shared{fill:#1f6feb}.own{fill:#f0883e}}";

/// Cells of equal size: the kind of each is that of its most particular page.
struct Grid {
    cells: Vec<Kind>,
    columns: u32,
    pages_per_cell: u32,
}

impl Grid {
    fn new(map: &Map<'_>, columns: u32, rows: u32) -> Self {
        let mut pages_per_cell = 1;
        while map.end.div_ceil(pages_per_cell) > columns * rows {
            pages_per_cell *= 2;
        }
        let mut cells = vec![Kind::Zero; map.end.div_ceil(pages_per_cell) as usize];
        for Run { pages, kind } in map.runs {
            let (first, last) = (pages.start / pages_per_cell, pages.end.min(map.end).div_ceil(pages_per_cell));
            let Some(covered) = cells.get_mut(first as usize..last as usize) else { continue };
            for cell in covered {
                *cell = (*cell).max(*kind);
            }
        }
        Self { cells, columns, pages_per_cell }
    }

    /// What a cell stands for.
    fn scale(&self) -> String {
        format!("{} ({})", super::counted(self.pages_per_cell.into(), "page"), size(self.pages_per_cell.into()))
    }

    fn bytes_per_row(&self) -> u64 {
        u64::from(self.columns) * u64::from(self.pages_per_cell) * PAGE_BYTES as u64
    }
}

impl Map<'_> {
    /// Pages of a kind among those that are drawn.
    pub(super) fn count(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Zero => {
                let others = count(self.runs, Kind::Shared) + count(self.runs, Kind::Own);
                u64::from(self.end).saturating_sub(others)
            }
            kind => count(self.runs, kind),
        }
    }

    /// Lines of at most `width` columns, if that is 80 or more: one character per so many pages.
    pub(super) fn text(&self, width: usize) -> String {
        let address_digits = format!("{:x}", u64::from(self.end) * PAGE_BYTES as u64).len();
        let margin = 2 + 2 + address_digits + 2;
        // A multiple of 16, so that addresses of rows are round.
        let columns = u32::try_from(width.saturating_sub(margin).clamp(16, 256) / 16 * 16).unwrap_or(16);
        let grid = Grid::new(self, columns, TEXT_ROWS);
        let mut out = String::new();
        for (row, cells) in grid.cells.chunks(columns as usize).enumerate() {
            let _ = write!(out, "  {:#0digits$x}  ", row as u64 * grid.bytes_per_row(), digits = address_digits + 2);
            out.extend(cells.iter().map(|kind| character(*kind)));
            out.push('\n');
        }
        out.push('\n');
        out += &text::table(
            "  ",
            &Kind::ALL.map(|kind| {
                let pages = self.count(kind);
                [character(kind).to_string(), kind.word().to_owned(), super::counted(pages, "page"), size(pages)]
            }),
        );
        let _ = writeln!(
            out,
            "  A character is {}{}",
            grid.scale(),
            if grid.pages_per_cell == 1 { "" } else { ": own if any is, else shared if any is" }
        );
        out
    }

    /// A picture that stands on its own. `title` and `subtitle` may be anybody's words.
    pub(super) fn svg(&self, title: &str, subtitle: &str) -> String {
        let grid = Grid::new(self, PICTURE_COLUMNS, PICTURE_ROWS);
        let rows = (grid.cells.len() as u32).div_ceil(PICTURE_COLUMNS);
        let (width, height) = (2 * MARGIN + PICTURE_COLUMNS * CELL, HEAD + rows * CELL + FOOT);
        let (title, subtitle) = (escape_xml(title), escape_xml(subtitle));
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{title}\">\n\
             <style>{STYLE}</style>\n\
             <rect class=\"back\" width=\"{width}\" height=\"{height}\" rx=\"6\"/>\n\
             <text class=\"title\" x=\"{MARGIN}\" y=\"32\">{title}</text>\n\
             <text class=\"faint\" x=\"{MARGIN}\" y=\"54\">{subtitle}</text>\n"
        );
        for (row, cells) in grid.cells.chunks(PICTURE_COLUMNS as usize).enumerate() {
            let y = HEAD + row as u32 * CELL;
            let mut x = MARGIN;
            for neighbours in cells.chunk_by(|a, b| a == b) {
                let width = neighbours.len() as u32 * CELL;
                rectangle(&mut out, neighbours[0], x, y, width - 1, CELL - 1);
                x += width;
            }
        }
        let mut x = MARGIN;
        let y = HEAD + rows * CELL + 18;
        for kind in Kind::ALL {
            let pages = self.count(kind);
            let label = format!("{}: {} ({})", kind.word(), super::counted(pages, "page"), size(pages));
            rectangle(&mut out, kind, x, y, 12, 12);
            let _ = writeln!(out, "<text x=\"{}\" y=\"{}\">{label}</text>", x + 18, y + 11);
            x += 250;
        }
        let scale = format!("A cell stands for {}, a row for {}", grid.scale(), text::size(grid.bytes_per_row()));
        let _ = writeln!(out, "<text class=\"faint\" x=\"{MARGIN}\" y=\"{}\">{scale}</text>\n</svg>", y + 31);
        out
    }
}

fn rectangle(out: &mut String, kind: Kind, x: u32, y: u32, width: u32, height: u32) {
    let class = kind.word();
    let _ = writeln!(out, "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"/>");
}

const fn character(kind: Kind) -> char {
    match kind {
        Kind::Zero => '·',
        Kind::Shared => '▒',
        Kind::Own => '█',
    }
}

fn size(pages: u64) -> String {
    text::size(pages * PAGE_BYTES as u64)
}

fn escape_xml(text: &str) -> String {
    let mut out = String::new();
    for character in text::escape(text).chars() {
        match character {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'), // XML has no such characters.
            character => out.push(character),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs() -> Vec<Run> {
        let run = |pages, kind| Run { pages, kind };
        vec![run(0..3, Kind::Shared), run(4..5, Kind::Own), run(30..33, Kind::Own)]
    }

    #[test]
    fn a_small_map_has_a_character_for_each_page() {
        let text = Map { runs: &runs(), end: 40 }.text(30);
        let want = "  \
  0x00000  ▒▒▒·█···········
  0x10000  ··············██
  0x20000  █·······

  █  own     4 pages   16 KiB
  ▒  shared  3 pages   12 KiB
  ·  zero    33 pages  132 KiB
  A character is 1 page (4 KiB)
";
        assert_eq!(text, want);
    }

    #[test]
    fn a_large_map_shows_the_most_particular_page_of_each_character() {
        for end in [1, 1000, 1 << 20, 1 << 28] {
            let text = Map { runs: &runs(), end }.text(80);
            let rows: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).collect();
            assert!(rows.len() <= TEXT_ROWS as usize, "{text}");
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        }
        let text = Map { runs: &runs(), end: 1 << 20 }.text(80);
        assert!(text.starts_with("  0x000000000  █·"), "{text}");
        assert!(text.contains("A character is 2048 pages (8 MiB): own if any is"), "{text}");
    }

    #[test]
    fn runs_beyond_the_end_are_cut() {
        assert!(Map { runs: &runs(), end: 31 }.text(80).contains("█  own"));
        assert!(Map { runs: &runs(), end: 0 }.text(0).contains("zero    0 pages"));
    }

    #[test]
    fn the_picture_has_a_rectangle_for_each_run_of_cells() {
        let svg = Map { runs: &runs(), end: PICTURE_COLUMNS * 2 }.svg("a <b> & \"c\" \u{1b}", "d");
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
        assert!(svg.contains("a &lt;b&gt; &amp; &quot;c&quot; \\u{1b}"), "{svg}");
        // Shared, zero, own, zero, own, zero; the second row; and three of the legend.
        assert_eq!(svg.matches("<rect class=").count(), 1 + 6 + 1 + 3, "{svg}");
        let own = format!("<rect class=\"own\" x=\"{}\" y=\"{HEAD}\" width=\"{}\"", MARGIN + 4 * CELL, CELL - 1);
        assert!(svg.contains(&own), "{svg}");
        assert!(svg.contains("prefers-color-scheme:dark"));
        let largest = Map { runs: &runs(), end: 1 << 28 }.svg("", "");
        assert!(largest.len() < 1 << 20, "{}", largest.len());
    }
}
