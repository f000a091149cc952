//! A report as curves: a chart for each row, a curve for each column, file sizes on a logarithmic axis.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::chart::COLOURS;
use super::{Figure, Report};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Outcome = Result<(), Box<dyn std::error::Error>>;

const WIDTH: i32 = 960;
const TITLE: i32 = 40;
/// Of one chart, with its caption and the names on its axes.
const CHART: i32 = 340;
const LEFT: i32 = 80;
/// Right of it the curves are named.
const RIGHT: i32 = 700;
const CAPTION: i32 = 30;
const BOTTOM: i32 = 40;
const LINE: i32 = 18;
/// Lines across a chart.
const GRID: i32 = 5;

/// Draws the figures that have a place on the axis.
pub(super) fn plot(report: &Report, text: &mut String) -> Outcome {
    let mut rows: Vec<&str> = Vec::new();
    for figure in placed(report) {
        if !rows.contains(&figure.row.as_str()) {
            rows.push(&figure.row);
        }
    }
    let height = TITLE + CHART * rows.len() as i32;
    let area = SVGBackend::with_string(text, (WIDTH.unsigned_abs(), height.unsigned_abs()));
    let area = area.into_drawing_area();
    area.fill(&WHITE)?;
    write(&area, &report.title, 18, (16, 16), (HPos::Left, VPos::Top))?;
    for (number, row) in rows.into_iter().enumerate() {
        let figures: Vec<_> = placed(report).filter(|figure| figure.row == row).collect();
        chart(&area, row, &figures, TITLE + CHART * number as i32)?;
    }
    area.present()?;
    Ok(())
}

fn placed(report: &Report) -> impl Iterator<Item = &Figure> {
    report.figures.iter().filter(|figure| figure.x.is_some())
}

/// Where values lie in a chart.
struct Frame {
    top: i32,
    bottom: i32,
    /// Binary logarithms of the least and the greatest size.
    sizes: (f64, f64),
    /// What the highest line stands for.
    most: f64,
}

impl Frame {
    fn of(figures: &[&Figure], top: i32) -> Self {
        let sizes = figures.iter().filter_map(|figure| figure.x).map(f64::log2);
        let sizes = sizes
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), size| (low.min(size), high.max(size)));
        let most = figures.iter().map(|figure| figure.spread.q3).fold(f64::MIN_POSITIVE, f64::max);
        Self { top: top + CAPTION, bottom: top + CHART - BOTTOM, sizes, most: round_up(most) }
    }

    fn x(&self, size: f64) -> i32 {
        let (low, high) = self.sizes;
        let share = if high > low { (size.log2() - low) / (high - low) } else { 0.5 };
        LEFT + (share * f64::from(RIGHT - LEFT)) as i32
    }

    fn y(&self, value: f64) -> i32 {
        let share = (value / self.most).clamp(0.0, 1.0);
        self.bottom - (share * f64::from(self.bottom - self.top)) as i32
    }
}

/// To the next 1, 2 or 5 times a power of ten.
fn round_up(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|step| step * power).find(|&bound| bound >= value).unwrap_or(value)
}

fn chart(area: &Area<'_>, row: &str, figures: &[&Figure], top: i32) -> Outcome {
    let frame = Frame::of(figures, top);
    write(area, row, 14, (LEFT, top + 8), (HPos::Left, VPos::Top))?;
    let grey = RGBColor(220, 220, 220);
    if let Some(unit) = figures.first().map(|figure| figure.unit) {
        for line in 0..=GRID {
            let value = frame.most * f64::from(line) / f64::from(GRID);
            let y = frame.y(value);
            area.draw(&PathElement::new([(LEFT, y), (RIGHT, y)], grey))?;
            write(area, &unit.text(value), 11, (LEFT - 6, y), (HPos::Right, VPos::Center))?;
        }
    }
    let mut sizes: Vec<f64> = figures.iter().filter_map(|figure| figure.x).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    for size in sizes {
        let x = frame.x(size);
        area.draw(&PathElement::new([(x, frame.bottom), (x, frame.bottom + 4)], BLACK))?;
        write(area, &size_text(size), 11, (x, frame.bottom + 8), (HPos::Center, VPos::Top))?;
    }
    let mut columns: Vec<&str> = Vec::new();
    for figure in figures {
        if !columns.contains(&figure.column.as_str()) {
            columns.push(&figure.column);
        }
    }
    for (number, column) in columns.into_iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let of_column: Vec<_> = figures.iter().filter(|figure| figure.column == column).collect();
        curve(area, &frame, &of_column, colour)?;
        let y = frame.top + LINE * number as i32;
        area.draw(&PathElement::new([(RIGHT + 20, y), (RIGHT + 40, y)], colour.stroke_width(2)))?;
        write(area, column, 12, (RIGHT + 46, y), (HPos::Left, VPos::Center))?;
    }
    Ok(())
}

/// Medians, joined, with their quartiles.
fn curve(area: &Area<'_>, frame: &Frame, figures: &[&&Figure], colour: RGBColor) -> Outcome {
    let points = |figure: &&&Figure| Some((frame.x(figure.x?), frame.y(figure.spread.median)));
    let points: Vec<_> = figures.iter().filter_map(points).collect();
    for (figure, &(x, y)) in figures.iter().zip(&points) {
        let (q1, q3) = (frame.y(figure.spread.q1), frame.y(figure.spread.q3));
        area.draw(&PathElement::new([(x, q1), (x, q3)], colour))?;
        area.draw(&Circle::new((x, y), 3, colour.filled()))?;
    }
    area.draw(&PathElement::new(points, colour.stroke_width(2)))?;
    Ok(())
}

/// A file's size, for people.
fn size_text(bytes: f64) -> String {
    if bytes >= f64::from(1 << 20) {
        format!("{} MiB", bytes / f64::from(1 << 20))
    } else {
        format!("{} KiB", bytes / 1024.0)
    }
}

fn write(area: &Area<'_>, text: &str, size: i32, at: (i32, i32), (h, v): (HPos, VPos)) -> Outcome {
    let style = ("sans-serif", size).into_text_style(area).color(&BLACK);
    area.draw_text(text, &style.pos(Pos::new(h, v)), at)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Picture, Unit};

    #[test]
    fn every_column_has_a_curve_and_every_row_a_chart() {
        let mut report = Report::new("x", "Over sizes", String::new(), false);
        report.picture = Picture::Curves;
        for (row, column) in [("write", "ours"), ("write", "theirs"), ("read", "ours")] {
            for size in [4096.0, 65536.0, 1048576.0] {
                let figure = Figure::single(row, "", column, Unit::BytesPerSecond, size * 700.0);
                report.figures.push(Figure { x: Some(size), ..figure });
            }
        }
        let mut text = String::new();
        plot(&report, &mut text).unwrap();
        for part in ["Over sizes", "write", "read", "theirs", "64 KiB", "1 MiB"] {
            assert!(text.contains(part), "{part}");
        }
        assert_eq!(text.matches("<circle").count(), 9, "a point for each figure");
    }

    #[test]
    fn scales_end_at_round_numbers() {
        assert_eq!(round_up(1234.0), 2000.0);
        assert_eq!(round_up(5000.0), 5000.0);
        assert_eq!(round_up(0.7), 1.0);
    }
}
