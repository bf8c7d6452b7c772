//! Plots as plain SVG, readable in light and dark mode.

use std::fmt::Write as _;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 170.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 46.0;
const COLOURS: [&str; 6] = ["#2f7d5b", "#c0622f", "#4669b0", "#9a4a8f", "#8a8a2c", "#777777"];

/// A named line.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Draws lines over a common axis; both axes begin at zero.
pub(crate) fn lines(title: &str, across: &str, up: &str, lines: &[Line]) -> String {
    let all = || lines.iter().flat_map(|line| &line.points);
    let (right, top) = (round_up(all().map(|p| p.0)), round_up(all().map(|p| p.1)));
    let x = |value: f64| LEFT + (WIDTH - LEFT - RIGHT) * value / right;
    let y = |value: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top;
    let mut svg = frame(title, up, top);
    for step in 0..=4 {
        let value = right * f64::from(step) / 4.0;
        let _ = writeln!(svg, "{}", words(x(value), HEIGHT - BOTTOM + 16.0, "middle", &short(value)));
    }
    let _ = writeln!(svg, "{}", words(f64::midpoint(LEFT, WIDTH - RIGHT), HEIGHT - 10.0, "middle", across));
    for (number, line) in lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let points: Vec<String> = line.points.iter().map(|(a, b)| format!("{:.1},{:.1}", x(*a), y(*b))).collect();
        let _ = writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>",
            points.join(" ")
        );
        // No dots on a curve of many points.
        for (a, b) in line.points.iter().filter(|_| line.points.len() < 20) {
            let _ = writeln!(svg, "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>", x(*a), y(*b));
        }
        key(&mut svg, number, colour, &line.name);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Draws one bar per name.
pub(crate) fn bars(title: &str, up: &str, bars: &[(String, f64)]) -> String {
    let top = round_up(bars.iter().map(|bar| bar.1));
    let room = (WIDTH - LEFT - RIGHT) / f64::from(u32::try_from(bars.len().max(1)).unwrap_or(u32::MAX));
    let mut svg = frame(title, up, top);
    let mut left = LEFT;
    for (number, (name, value)) in bars.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let high = (HEIGHT - TOP - BOTTOM) * value / top;
        let _ = writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{high:.1}\" fill=\"{colour}\"/>",
            left + room * 0.15,
            HEIGHT - BOTTOM - high,
            room * 0.7
        );
        let _ = writeln!(svg, "{}", words(left + room / 2.0, HEIGHT - BOTTOM - high - 4.0, "middle", &short(*value)));
        key(&mut svg, number, colour, name);
        left += room;
    }
    svg.push_str("</svg>\n");
    svg
}

fn frame(title: &str, up: &str, top: f64) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\" fill=\"#777\">\n<title>{title}</title>\n<text x=\"{LEFT}\" y=\"18\" font-size=\"14\" \
         font-weight=\"bold\">{title}</text>\n"
    );
    let _ = writeln!(svg, "{}", words(8.0, 34.0, "start", up));
    for step in 0..=4 {
        let part = f64::from(step) / 4.0;
        let y = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * part;
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#999\" stroke-opacity=\"0.35\"/>",
            WIDTH - RIGHT
        );
        let _ = writeln!(svg, "{}", words(LEFT - 6.0, y + 4.0, "end", &short(top * part)));
    }
    svg
}

fn key(svg: &mut String, number: usize, colour: &str, name: &str) {
    let y = TOP + 18.0 * f64::from(u32::try_from(number).unwrap_or_default());
    let x = WIDTH - RIGHT + 14.0;
    let _ = writeln!(svg, "<rect x=\"{x}\" y=\"{y:.1}\" width=\"10\" height=\"10\" fill=\"{colour}\"/>");
    let _ = writeln!(svg, "{}", words(x + 16.0, y + 9.0, "start", name));
}

fn words(x: f64, y: f64, anchor: &str, text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>")
}

/// Returns the next round number above all values.
fn round_up(values: impl Iterator<Item = f64>) -> f64 {
    let most = values.fold(0.0, f64::max).max(1e-9);
    let power = 10f64.powf(most.log10().floor());
    [1.0, 2.0, 2.5, 4.0, 5.0, 10.0].into_iter().map(|step| step * power).find(|top| *top >= most).unwrap_or(most)
}

fn short(value: f64) -> String {
    if value >= 10_000.0 {
        format!("{:.0}k", value / 1000.0)
    } else if value >= 100.0 || value.fract() == 0.0 {
        format!("{value:.0}")
    } else if value >= 1.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_ends_at_the_next_round_number() {
        for (most, top) in [(0.9, 1.0), (1.1, 2.0), (2.2, 2.5), (37.0, 40.0), (410.0, 500.0), (6_000.0, 10_000.0)] {
            let found = round_up([0.0, most].into_iter());
            assert!((found - top).abs() < 1e-9, "{most}: {found}");
        }
    }

    #[test]
    fn numbers_on_an_axis_are_short() {
        let texts = [0.0, 0.25, 1.5, 40.0, 250.4, 20_000.0].map(short);
        assert_eq!(texts, ["0", "0.25", "1.5", "40", "250", "20k"]);
    }

    #[test]
    fn a_plot_contains_each_line_with_its_escaped_name() {
        let line = |name: &str| Line { name: name.to_owned(), points: vec![(0.0, 0.0), (1.0, 2.0)] };
        let svg = lines("title", "seconds", "%", &[line("a<b"), line("c&d")]);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains("a&lt;b") && svg.contains("c&amp;d"), "{svg}");
    }
}
