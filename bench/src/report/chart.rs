//! A report as a picture: one bar per figure, on a logarithmic scale per unit, with its quartiles as a line.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Figure, Picture, Report, curves};

const WIDTH: u32 = 960;
const BAR: i32 = 14;
const GAP: i32 = 10;
const MARGIN: i32 = 16;
/// Where the bars begin: left of it stands what they are.
const LEFT: i32 = 380;
/// Right of the longest bar stands its value.
const RIGHT: i32 = 90;

/// Fewer decades than this would make small differences look large.
const DECADES_MIN: f64 = 1.0;

/// Colours that people with any kind of colour vision tell apart (Okabe and Ito).
pub(super) const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(120, 120, 120),
];

/// Draws a report: the text of an SVG file, or what the drawing library said.
pub fn draw(report: &Report) -> Result<String, String> {
    let mut text = String::new();
    let drawn = match report.picture {
        Picture::Bars => plot(report, &mut text),
        Picture::Curves => curves::plot(report, &mut text),
    };
    drawn.map_err(|error| error.to_string())?;
    Ok(text)
}

fn plot(report: &Report, text: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let groups = groups(report);
    let area = SVGBackend::with_string(text, (WIDTH, height(&groups))).into_drawing_area();
    area.fill(&WHITE)?;
    let title = ("sans-serif", 18).into_text_style(&area).color(&BLACK);
    area.draw_text(&report.title, &title, (MARGIN, MARGIN))?;
    let mut columns: Vec<&str> = Vec::new();
    let mut top = MARGIN * 3;
    for group in &groups {
        for figure in group {
            let colour = match columns.iter().position(|&column| column == figure.column) {
                Some(place) => place,
                None => {
                    columns.push(&figure.column);
                    columns.len() - 1
                }
            };
            let scale = Scale::of(report, figure);
            bar(&area, figure, scale, COLOURS[colour % COLOURS.len()], top)?;
            top += BAR;
        }
        top += GAP;
    }
    area.present()?;
    Ok(())
}

/// Figures of one row and variant stand together.
fn groups(report: &Report) -> Vec<Vec<&Figure>> {
    let mut groups: Vec<Vec<&Figure>> = Vec::new();
    for figure in &report.figures {
        let of_row = groups.iter_mut().find(|group| {
            group.first().is_some_and(|first| first.row == figure.row && first.variant == figure.variant)
        });
        match of_row {
            Some(group) => group.push(figure),
            None => groups.push(vec![figure]),
        }
    }
    groups
}

fn height(groups: &[Vec<&Figure>]) -> u32 {
    let bars: usize = groups.iter().map(Vec::len).sum();
    let height = MARGIN * 4 + BAR * bars as i32 + GAP * groups.len() as i32;
    height.unsigned_abs()
}

/// From the power of ten below the least value of a unit to its greatest.
#[derive(Clone, Copy)]
struct Scale {
    low: f64,
    decades: f64,
}

impl Scale {
    fn of(report: &Report, figure: &Figure) -> Self {
        let values =
            report.figures.iter().filter(|other| other.unit == figure.unit).map(|other| other.spread);
        let positive = |value: f64| value.max(f64::MIN_POSITIVE).log10();
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), spread| {
            (low.min(positive(spread.median)), high.max(positive(spread.q3)))
        });
        let low = (low - 0.1).floor();
        Self { low, decades: (high - low).max(DECADES_MIN) }
    }

    fn x(self, value: f64) -> i32 {
        let room = f64::from(WIDTH as i32 - LEFT - RIGHT);
        let share = (value.max(f64::MIN_POSITIVE).log10() - self.low) / self.decades;
        LEFT + (share.clamp(0.0, 1.0) * room) as i32
    }
}

fn bar(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    figure: &Figure,
    scale: Scale,
    colour: RGBColor,
    top: i32,
) -> Result<(), Box<dyn std::error::Error>> {
    let spread = &figure.spread;
    let right = scale.x(spread.median);
    let middle = top + BAR / 2;
    area.draw(&Rectangle::new([(LEFT, top + 1), (right, top + BAR - 1)], colour.filled()))?;
    area.draw(&PathElement::new([(scale.x(spread.q1), middle), (scale.x(spread.q3), middle)], BLACK))?;
    let small = ("sans-serif", 11).into_text_style(area).color(&BLACK);
    let label = [figure.row.as_str(), &figure.variant, &figure.column].map(str::to_owned);
    let label = label.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" · ");
    let left = small.pos(Pos::new(HPos::Right, VPos::Center));
    area.draw_text(&label, &left, (LEFT - 6, middle))?;
    let after = small.pos(Pos::new(HPos::Left, VPos::Center));
    let end = right.max(scale.x(spread.q3));
    area.draw_text(&figure.unit.text(spread.median), &after, (end + 6, middle))?;
    Ok(())
}
