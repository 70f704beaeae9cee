//! The pictures of the sweep: what a request costs by the number of pages that it writes.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::chart::{Chart, Look, Series};

/// What the sweep writes. Times are in microseconds.
#[derive(Deserialize)]
pub(crate) struct Figures {
    machine: String,
    points: Vec<Point>,
}

#[derive(Deserialize)]
struct Point {
    write: String,
    pages: f64,
    way: String,
    both: f64,
}

/// What cannot be told from the noise of entering the guest.
const NOISE_US: f64 = 2.0;

/// A way's points; `shape` makes each one's value, of what it took and of what a request takes that writes nothing.
fn series<'a>(
    figures: &Figures,
    (write, way): (&str, &str),
    (label, look): (&'a str, Look),
    shape: impl Fn(&Point, f64) -> f64,
) -> Series<'a> {
    let of = |way: &'static str| figures.points.iter().filter(move |point| point.write == write && point.way == way);
    let nothing = |pages: f64| of("nothing").find(|point| point.pages == pages).map_or(0.0, |point| point.both);
    let points = figures.points.iter().filter(|point| point.write == write && point.way == way);
    let points = points.map(|point| (point.pages, shape(point, nothing(point.pages)))).collect();
    Series { label, look, points }
}

const COPY: &str = "copied back in place (restore)";
const COOL: &str = "compared and write-protected (cooling)";
const DROP: &str = "dropped, to be faulted in again";

impl Figures {
    /// # Errors
    /// When the text is not what the sweep writes.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| format!("these are no figures of the sweep: {error}"))
    }

    /// A whole request.
    fn requests(&self) -> Option<String> {
        let all = |way, label, look| series(self, ("byte", way), (label, look), |point, _| point.both);
        let subtitle = format!("{}; medians, run in turn; the guest writes one byte in each page", self.machine);
        Chart {
            title: "A request: run the guest, then put its memory back",
            subtitle: &subtitle,
            x_label: "pages that the guest writes",
            y_label: "time",
            series: vec![
                all("copy_back", COPY, Look::Line(0)),
                all("cool", COOL, Look::Line(1)),
                all("drop", DROP, Look::Line(2)),
                all("sandbox", "a whole sandbox: call and restore", Look::Rings(0)),
                all("nothing", "a guest that writes nothing", Look::Dashed(3)),
            ],
        }
        .svg()
    }

    /// What each page adds.
    fn pages(&self) -> Option<String> {
        let each = |write, way, label, look| {
            series(self, (write, way), (label, look), |point, nothing| {
                let added = point.both - nothing;
                if added < NOISE_US { 0.0 } else { added / point.pages }
            })
        };
        let subtitle = format!("{}; solid: one byte written in each page, dashed: half a page", self.machine);
        Chart {
            title: "What each written page adds to a request",
            subtitle: &subtitle,
            x_label: "pages that the guest writes",
            y_label: "time per page",
            series: vec![
                each("byte", "copy_back", COPY, Look::Line(0)),
                each("half_page", "copy_back", "", Look::Dashed(0)),
                each("byte", "cool", COOL, Look::Line(1)),
                each("half_page", "cool", "", Look::Dashed(1)),
                each("byte", "drop", DROP, Look::Line(2)),
                each("half_page", "drop", "", Look::Dashed(2)),
            ],
        }
        .svg()
    }

    /// File names and pictures.
    ///
    /// # Errors
    /// When there is nothing to draw.
    pub(crate) fn pictures(&self) -> Result<[(&'static str, String); 2], String> {
        let missing = || "the figures have no points to draw: run the sweep again".to_owned();
        Ok([
            ("restore-sweep.svg", self.requests().ok_or_else(missing)?),
            ("restore-sweep-per-page.svg", self.pages().ok_or_else(missing)?),
        ])
    }
}

/// Where pictures and figures are kept.
pub(crate) fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/img")
}

/// Draws the figures in `from`.
///
/// # Errors
/// When the file cannot be read or is something else, and when a picture cannot be written.
pub(crate) fn draw(from: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(from).map_err(|error| format!("cannot read {}: {error}", from.display()))?;
    for (name, picture) in Figures::parse(&text)?.pictures()? {
        let path = directory().join(name);
        std::fs::write(&path, picture).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pictures_are_those_of_the_figures() {
        let figures = std::fs::read_to_string(directory().join("restore-sweep.json")).unwrap();
        for (name, picture) in Figures::parse(&figures).unwrap().pictures().unwrap() {
            let kept = std::fs::read_to_string(directory().join(name)).unwrap();
            assert!(kept == picture, "{name}: cargo xtask bench --plot --from docs/img/restore-sweep.json");
        }
    }

    #[test]
    fn what_is_no_sweep_is_refused() {
        assert!(Figures::parse("{}").is_err());
        assert!(Figures::parse("{\"machine\": \"m\", \"points\": []}").unwrap().pictures().is_err());
    }
}
