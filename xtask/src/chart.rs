//! Charts with two logarithmic axes, as SVG. Pure: figures in, text out.
//!
//! Colours follow the reader's preference for light or dark, and the background is part of the picture, so that it can be
//! read on any page. No fonts are fetched.

use std::fmt::Write as _;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 500.0;
const LEFT: f64 = 82.0;
const RIGHT: f64 = 36.0;
const BOTTOM: f64 = 62.0;
const TOP: f64 = 64.0; // The legend comes on top of it.
const LEGEND_LINE: f64 = 23.0;

/// Without variables, which not every viewer of SVG knows. Numbers are those of [`Look`].
const STYLE: &str = "\
text{font:15px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1f2328}\
text.title{font-size:19px;font-weight:600}text.faint{fill:#59636e}.back{fill:#fff}\
.major{stroke:#c8d0d8}.minor{stroke:#e8ecf0}path{fill:none;stroke-width:2.5;stroke-linejoin:round}\
.s0{stroke:#0969da}.s1{stroke:#bc4c00}.s2{stroke:#8250df}.s3{stroke:#59636e}\
.m0{fill:#0969da}.m1{fill:#bc4c00}.m2{fill:#8250df}\
.dashed{stroke-dasharray:7 5}.hollow{fill:none;stroke-width:2}\
@media(prefers-color-scheme:dark){text{fill:#f0f6fc}text.faint{fill:#9198a1}.back{fill:#0d1117}\
.major{stroke:#3d444d}.minor{stroke:#20262d}.s0{stroke:#58a6ff}.s1{stroke:#f0883e}.s2{stroke:#bc8cff}.s3{stroke:#9198a1}\
.m0{fill:#58a6ff}.m1{fill:#f0883e}.m2{fill:#bc8cff}}";

/// A chart.
pub(crate) struct Chart<'a> {
    pub(crate) title: &'a str,
    /// What was measured where, below the title.
    pub(crate) subtitle: &'a str,
    pub(crate) x_label: &'a str,
    pub(crate) y_label: &'a str,
    pub(crate) series: Vec<Series<'a>>,
}

/// Points that belong together.
pub(crate) struct Series<'a> {
    /// Without one it is not in the legend.
    pub(crate) label: &'a str,
    pub(crate) look: Look,
    /// Those that are not positive have no place on a logarithmic axis, and are left out.
    pub(crate) points: Vec<(f64, f64)>,
}

/// How a series is drawn. The number is that of a colour and of a shape.
#[derive(Clone, Copy)]
pub(crate) enum Look {
    /// A line with filled marks.
    Line(usize),
    /// A dashed line without marks.
    Dashed(usize),
    /// Hollow rings alone, larger than a line's marks.
    Rings(usize),
}

/// A logarithmic axis from its least to its greatest value, and where these lie in the picture.
#[derive(Clone, Copy)]
struct Axis {
    least: f64,
    most: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn place(self, value: f64) -> f64 {
        let part = (value / self.least).ln() / (self.most / self.least).ln();
        self.from + part * (self.to - self.from)
    }
}

/// 1, 2 and 5 times the powers of ten that enclose all values, and those between.
fn steps(values: impl Iterator<Item = f64> + Clone) -> Vec<f64> {
    let least = values.clone().fold(f64::INFINITY, f64::min);
    let most = values.fold(0.0, f64::max);
    let all: Vec<f64> = (-6..=9).flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10_f64.powi(power))).collect();
    let first = all.iter().rposition(|step| *step <= least).unwrap_or(0);
    let last = all.iter().position(|step| *step >= most).unwrap_or(all.len() - 1);
    all[first.min(last)..=last.max(first + 1).min(all.len() - 1)].to_vec()
}

/// Powers of two that enclose all values.
fn powers(values: impl Iterator<Item = f64> + Clone) -> Vec<f64> {
    let least = values.clone().fold(f64::INFINITY, f64::min).log2().floor() as i32;
    let most = values.fold(0.0, f64::max).log2().ceil() as i32;
    (least..=most.max(least + 1)).map(|power| 2_f64.powi(power)).collect()
}

/// A time in the unit that suits it.
fn time(microseconds: f64) -> String {
    if microseconds >= 1e6 {
        format!("{} s", microseconds / 1e6)
    } else if microseconds >= 1e3 {
        format!("{} ms", microseconds / 1e3)
    } else {
        format!("{microseconds} µs")
    }
}

/// A whole number with commas.
fn number(value: f64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

impl Chart<'_> {
    /// The picture: times in microseconds over whole numbers. `None` if no point can be drawn.
    pub(crate) fn svg(&self) -> Option<String> {
        let drawable = || self.series.iter().flat_map(|series| &series.points).filter(|(x, y)| *x > 0.0 && *y > 0.0);
        drawable().next()?;
        let (columns, rows) = (powers(drawable().map(|(x, _)| *x)), steps(drawable().map(|(_, y)| *y)));
        let top = TOP
            + LEGEND_LINE * self.series.iter().filter(|series| !series.label.is_empty()).count().div_ceil(2) as f64
            + 8.0;
        let x = Axis { least: columns[0], most: columns[columns.len() - 1], from: LEFT, to: WIDTH - RIGHT };
        let y = Axis { least: rows[0], most: rows[rows.len() - 1], from: HEIGHT - BOTTOM, to: top };

        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
             height=\"{HEIGHT}\" role=\"img\">\n<title>{}</title>\n<style>{STYLE}</style>\n\
             <rect class=\"back\" width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"6\"/>\n",
            escaped(self.title)
        );
        text(&mut out, "title", (20.0, 32.0), "start", self.title);
        text(&mut out, "faint", (20.0, 54.0), "start", self.subtitle);
        for column in &columns {
            let is_major = column.log2().rem_euclid(2.0) == 0.0;
            line(
                &mut out,
                if is_major { "major" } else { "minor" },
                (x.place(*column), y.from),
                (x.place(*column), y.to),
            );
            if is_major {
                text(&mut out, "faint", (x.place(*column), y.from + 22.0), "middle", &number(*column));
            }
        }
        for row in &rows {
            let is_major = row.log10().fract() == 0.0;
            line(&mut out, if is_major { "major" } else { "minor" }, (x.from, y.place(*row)), (x.to, y.place(*row)));
            // Where there are few, each has its label.
            if is_major || rows.len() <= 8 {
                text(&mut out, "faint", (x.from - 10.0, y.place(*row) + 5.0), "end", &time(*row));
            }
        }
        text(&mut out, "", (f64::midpoint(x.from, x.to), HEIGHT - 14.0), "middle", self.x_label);
        let middle = f64::midpoint(y.from, y.to);
        let _ = writeln!(
            out,
            "<text transform=\"translate(20 {middle:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            escaped(self.y_label)
        );
        let mut place = 0;
        for series in &self.series {
            let points: Vec<(f64, f64)> = series
                .points
                .iter()
                .filter(|(x, y)| *x > 0.0 && *y > 0.0)
                .map(|point| (x.place(point.0), y.place(point.1)))
                .collect();
            series.look.draw(&mut out, &points);
            if series.label.is_empty() {
                continue;
            }
            let (column, row) = (place % 2, place / 2);
            place += 1;
            let at = (24.0 + 370.0 * column as f64, TOP + 16.0 + LEGEND_LINE * row as f64);
            let sample = [(at.0, at.1 - 5.0), (at.0 + 30.0, at.1 - 5.0), (at.0 + 15.0, at.1 - 5.0)];
            series.look.draw(&mut out, if matches!(series.look, Look::Rings(_)) { &sample[2..] } else { &sample[..2] });
            text(&mut out, "", (at.0 + 42.0, at.1), "start", series.label);
        }
        out.push_str("</svg>\n");
        Some(out)
    }
}

impl Look {
    fn draw(self, out: &mut String, points: &[(f64, f64)]) {
        let (Self::Line(colour) | Self::Dashed(colour) | Self::Rings(colour)) = self;
        if let Self::Line(_) | Self::Dashed(_) = self {
            let dashed = if matches!(self, Self::Dashed(_)) { " dashed" } else { "" };
            let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
            let _ = writeln!(out, "<path class=\"s{colour}{dashed}\" d=\"M{}\"/>", path.join("L"));
        }
        for (x, y) in points {
            let _ = match self {
                Self::Dashed(_) => Ok(()),
                Self::Rings(_) => {
                    writeln!(out, "<circle class=\"s{colour} hollow\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"7\"/>")
                }
                Self::Line(0) => writeln!(out, "<circle class=\"m0\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/>"),
                Self::Line(1) => {
                    let (x, y) = (x - 4.0, y - 4.0);
                    writeln!(out, "<rect class=\"m1\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"8\" height=\"8\"/>")
                }
                Self::Line(_) => {
                    let (left, right, low, high) = (x - 5.0, x + 5.0, y + 4.0, y - 5.0);
                    let corners = format!("{left:.1},{low:.1} {right:.1},{low:.1} {x:.1},{high:.1}");
                    writeln!(out, "<polygon class=\"m{colour}\" points=\"{corners}\"/>")
                }
            };
        }
    }
}

fn line(out: &mut String, class: &str, from: (f64, f64), to: (f64, f64)) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ = writeln!(out, "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>");
}

fn text(out: &mut String, class: &str, (x, y): (f64, f64), anchor: &str, content: &str) {
    let content = escaped(content);
    let _ =
        writeln!(out, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>) -> Chart<'static> {
        let series = vec![Series { label: "a & b", look: Look::Line(0), points }];
        Chart { title: "T", subtitle: "S", x_label: "x", y_label: "y", series }
    }

    #[test]
    fn an_axis_is_logarithmic_from_end_to_end() {
        let axis = Axis { least: 1.0, most: 100.0, from: 50.0, to: 250.0 };
        for (value, want) in [(1.0, 50.0), (10.0, 150.0), (100.0, 250.0)] {
            assert!((axis.place(value) - want).abs() < 1e-9, "{value}");
        }
    }

    #[test]
    fn steps_enclose_the_values() {
        assert_eq!(steps([3.0, 40.0].into_iter()), [2.0, 5.0, 10.0, 20.0, 50.0]);
        assert_eq!(steps([10.0].into_iter()), [10.0, 20.0]);
        assert_eq!(powers([1.0, 5.0].into_iter()), [1.0, 2.0, 4.0, 8.0]);
        assert_eq!(powers([4.0].into_iter()), [4.0, 8.0]);
    }

    #[test]
    fn values_have_units_and_commas() {
        assert_eq!([0.5, 20.0, 1e3, 5e4, 2e6].map(time), ["0.5 µs", "20 µs", "1 ms", "50 ms", "2 s"]);
        assert_eq!([1.0, 256.0, 4096.0].map(number), ["1", "256", "4,096"]);
    }

    #[test]
    fn every_point_is_drawn_inside_and_text_is_escaped() {
        let svg = chart(vec![(1.0, 30.0), (64.0, 700.0), (4096.0, 90_000.0)]).svg().unwrap();
        let marks: Vec<(f64, f64)> = svg
            .lines()
            .filter(|line| line.contains("class=\"m0\""))
            .map(|line| {
                let value = |name| line.split(name).nth(1).unwrap().split('"').next().unwrap().parse().unwrap();
                (value("cx=\""), value("cy=\""))
            })
            .collect();
        assert_eq!(marks.len(), 3 + 2); // Two are the legend's.
        for (x, y) in marks {
            assert!((0.0..=WIDTH).contains(&x) && (0.0..=HEIGHT).contains(&y), "{x}, {y}");
        }
        assert!(svg.contains("a &amp; b") && !svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn what_has_no_place_is_left_out() {
        assert!(chart(vec![(1.0, 0.0), (0.0, 1.0), (2.0, -3.0)]).svg().is_none());
        let svg = chart(vec![(1.0, -1.0), (2.0, 3.0)]).svg().unwrap();
        assert_eq!(svg.matches("class=\"m0\"").count(), 1 + 2);
    }
}
