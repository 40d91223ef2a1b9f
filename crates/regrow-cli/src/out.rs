//! Writes to stdout and stderr. Columns are aligned, a closed pipe is an error instead of a panic,
//! and no text, also in JSON, can control the terminal.
//!
//! If stdout is a terminal, tables fit its width and words have colours. Otherwise, and with
//! `NO_COLOR`, the text is plain.
//!
//! `println!` panics on a closed pipe and on a full disk. Here every write returns a `Result`, and
//! [`Failure`](crate::exit::Failure) decides what to do.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::io::{self, BufWriter, StdoutLock, Write};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use console::{Style, Term};
pub use regrow_base::text::format_bytes as size;
use regrow_base::text::{is_printable, printable, printable_lines};
use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter, Serializer};

/// Stdout with a buffer. Flush it before the end.
pub fn stdout() -> BufWriter<StdoutLock<'static>> {
    BufWriter::with_capacity(1 << 16, io::stdout().lock())
}

/// Writes a report to stderr. If stderr cannot be written, the report is lost.
pub fn warn(text: &str) {
    let text = printable_lines(text);
    let word = text.split_once(": ").map(|(word, _)| word).filter(|_| console::colors_enabled_stderr());
    let tint = match word {
        Some("error") => Tint::Bad,
        Some("warning" | "note") => Tint::Note,
        _ => Tint::Plain,
    };
    let (word, rest) = text.split_at(word.filter(|_| tint != Tint::Plain).map_or(0, str::len));
    let _ = writeln!(io::stderr().lock(), "{}{rest}", tint.applied(word, tint != Tint::Plain));
}

/// The meaning of a text, which decides its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tint {
    Plain,
    Title,
    Good,
    Bad,
    Note,
}

impl Tint {
    fn applied(self, text: &str, has_colors: bool) -> Cow<'_, str> {
        let style = match self {
            Self::Plain => return Cow::Borrowed(text),
            Self::Title => Style::new().bold(),
            Self::Good => Style::new().green(),
            Self::Bad => Style::new().red(),
            Self::Note => Style::new().yellow(),
        };
        match has_colors && !text.is_empty() {
            true => Cow::Owned(style.force_styling(true).apply_to(text).to_string()),
            false => Cow::Borrowed(text),
        }
    }
}

pub fn tint(tint: Tint, text: &str) -> Cow<'_, str> {
    tint.applied(text, Look::of_stdout().has_colors)
}

/// The properties of the output.
#[derive(Debug, Clone, Copy, Default)]
struct Look {
    /// The columns of the terminal; `None` if the output is not a terminal.
    width: Option<usize>,
    has_colors: bool,
}

impl Look {
    fn of_stdout() -> Self {
        static LOOK: OnceLock<Look> = OnceLock::new();
        *LOOK.get_or_init(|| Self {
            width: Term::stdout().size_checked().map(|(_, columns)| usize::from(columns)),
            has_colors: console::colors_enabled(),
        })
    }
}

/// The columns of the terminal; `None` if stdout is not a terminal.
pub fn terminal_width() -> Option<usize> {
    Look::of_stdout().width
}

pub fn json(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    value.serialize(&mut Serializer::with_formatter(&mut *out, Harmless(PrettyFormatter::new())))?;
    writeln!(out)
}

pub fn json_line(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    value.serialize(&mut Serializer::with_formatter(&mut *out, Harmless(CompactFormatter)))?;
    writeln!(out)
}

/// A JSON formatter that wraps another one. Characters that are not printable become escapes
/// (`\u202e`); a JSON parser reads the same text.
pub struct Harmless<F>(pub F);

impl<F: Formatter> Formatter for Harmless<F> {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, text: &str) -> io::Result<()> {
        let mut shown = text;
        while let Some((at, c)) = shown.char_indices().find(|(_, c)| !is_printable(*c)) {
            let (before, rest) = shown.split_at(at);
            out.write_all(before.as_bytes())?;
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}")?;
            }
            shown = rest.get(c.len_utf8()..).unwrap_or_default();
        }
        out.write_all(shown.as_bytes())
    }

    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_array(out)
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array(out)
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(out, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array_value(out)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object(out)
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object(out)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object_value(out)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object_value(out)
    }
}

/// How the cells of a column are aligned and shortened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Names, aligned left. On a narrow terminal their middle is left out, unless two names would
    /// then look the same.
    Left,
    /// Words, aligned left. On a narrow terminal the last words are left out.
    Words,
    /// Numbers, aligned right, never shortened.
    Right,
    Hidden,
}

/// Prints rows as aligned columns, two spaces apart, without trailing spaces. `header` has the
/// titles of the columns.
pub fn columns<const N: usize>(
    out: &mut impl Write,
    indent: &str,
    header: Option<[&str; N]>,
    align: [Align; N],
    rows: &[[String; N]],
) -> io::Result<()> {
    let mut table = Table::new();
    if let Some(titles) = header {
        table.titles(titles);
    }
    rows.iter().flatten().for_each(|cell| table.cell(cell));
    table.print(out, indent, align)
}

/// The widest cell that widens its column. A longer cell moves only the rest of its own row.
const COLUMN_WIDTH_MAX: usize = 160;

/// The narrowest width to which a column of text is shortened.
const FITTED_WIDTH_MIN: usize = 16;

/// A table of any length. One string has the text of all cells, so that a row needs no allocation.
#[derive(Debug)]
pub struct Table<const N: usize> {
    text: String,
    cells: Vec<Cell>,
}

/// The end of a cell in the text of its table, its width and its colour.
#[derive(Debug, Clone, Copy)]
struct Cell {
    end: usize,
    width: u32,
    tint: Tint,
}

impl<const N: usize> Table<N> {
    pub fn new() -> Self {
        Self { text: String::new(), cells: Vec::new() }
    }

    pub fn titles(&mut self, titles: [&str; N]) {
        titles.into_iter().for_each(|title| self.tinted(Tint::Title, title));
    }

    /// Adds a cell. After `N` cells a new row begins.
    pub fn cell(&mut self, value: impl fmt::Display) {
        self.tinted(Tint::Plain, value);
    }

    pub fn tinted(&mut self, tint: Tint, value: impl fmt::Display) {
        let start = self.text.len();
        // Writing to a `String` cannot fail.
        let _ = write!(self.text, "{value}");
        if let Cow::Owned(safe) = printable(self.text.get(start..).unwrap_or_default()) {
            self.text.truncate(start);
            self.text.push_str(&safe);
        }
        let cell = self.text.get(start..).unwrap_or_default();
        let width = if cell.is_ascii() { cell.len() } else { cell.chars().count() };
        let width = u32::try_from(width).unwrap_or(u32::MAX);
        self.cells.push(Cell { end: self.text.len(), width, tint });
    }

    /// Prints the rows as aligned columns, two spaces apart, without trailing spaces.
    pub fn print(&self, out: &mut impl Write, indent: &str, align: [Align; N]) -> io::Result<()> {
        self.print_for(Look::of_stdout(), out, indent, align)
    }

    /// The table as lines, each with its line feed. No cell is shortened.
    pub fn lines(&self, indent: &str, align: [Align; N]) -> Vec<String> {
        let mut text = Vec::new();
        let look = Look { width: None, ..Look::of_stdout() };
        // Writing to a `Vec` cannot fail.
        let _ = self.print_for(look, &mut text, indent, align);
        String::from_utf8_lossy(&text).split_inclusive('\n').map(str::to_owned).collect()
    }

    /// The width of the widest row if nothing is shortened.
    pub fn width(&self, align: [Align; N]) -> usize {
        let shown = align.iter().filter(|align| **align != Align::Hidden).count();
        self.widths(align).iter().sum::<usize>() + 2 * shown.saturating_sub(1)
    }

    fn widths(&self, align: [Align; N]) -> [usize; N] {
        let mut widths = [0; N];
        for row in self.cells.chunks(N.max(1)) {
            for ((width, cell), align) in widths.iter_mut().zip(row).zip(align) {
                if align != Align::Hidden {
                    *width = (*width).max((cell.width as usize).min(COLUMN_WIDTH_MAX));
                }
            }
        }
        widths
    }

    fn print_for(&self, look: Look, out: &mut impl Write, indent: &str, align: [Align; N]) -> io::Result<()> {
        let whole = self.widths(align);
        let mut widths = whole;
        if let Some(room) = look.width {
            let gaps = 2 * align.iter().filter(|align| **align != Align::Hidden).count().saturating_sub(1);
            fit(&mut widths, align, room.saturating_sub(indent.len() + gaps));
            for (column, (width, whole)) in widths.iter_mut().zip(whole).enumerate() {
                if *width < whole
                    && align.get(column) == Some(&Align::Left)
                    && self.is_ambiguous(column, *width)
                {
                    *width = whole;
                }
            }
        }
        let (mut line, mut start) = (String::new(), 0);
        for row in self.cells.chunks(N.max(1)) {
            line.clear();
            line.push_str(indent);
            let mut is_first = true;
            for ((cell, width), align) in row.iter().zip(widths).zip(align) {
                let text = self.text.get(start..cell.end).unwrap_or_default();
                start = cell.end;
                if align == Align::Hidden {
                    continue;
                }
                line.push_str(if is_first { "" } else { "  " });
                is_first = false;
                let own_width = cell.width as usize;
                let text = match align {
                    _ if look.width.is_none() || own_width <= width => Cow::Borrowed(text),
                    Align::Left => Cow::Owned(shortened(text, own_width, width)),
                    Align::Words => Cow::Owned(first_words(text, width)),
                    Align::Right | Align::Hidden => Cow::Borrowed(text),
                };
                let padding = std::iter::repeat_n(' ', width.saturating_sub(own_width));
                let text = cell.tint.applied(&text, look.has_colors);
                match align {
                    Align::Right => {
                        line.extend(padding);
                        line.push_str(&text);
                    }
                    _ => {
                        line.push_str(&text);
                        line.extend(padding);
                    }
                }
            }
            let end = line.trim_end().len();
            line.truncate(end);
            line.push('\n');
            out.write_all(line.as_bytes())?;
        }
        Ok(())
    }

    /// Whether two different cells of a column would look the same at this width.
    fn is_ambiguous(&self, column: usize, width: usize) -> bool {
        let mut shown = HashMap::new();
        let mut start = 0;
        self.cells.iter().enumerate().any(|(at, cell)| {
            let text = self.text.get(start..cell.end).unwrap_or_default();
            start = cell.end;
            let own_width = cell.width as usize;
            at % N.max(1) == column
                && own_width > width
                && shown.insert(shortened(text, own_width, width), text).is_some_and(|other| other != text)
        })
    }
}

/// Makes columns of text narrower, the widest first, until a row fits.
fn fit<const N: usize>(widths: &mut [usize; N], align: [Align; N], room: usize) {
    loop {
        let excess = widths.iter().sum::<usize>().saturating_sub(room);
        let texts =
            widths.iter_mut().zip(align).filter(|(_, align)| matches!(align, Align::Left | Align::Words));
        let widest = texts.map(|(width, _)| width).max().filter(|width| **width > FITTED_WIDTH_MIN);
        match widest {
            Some(widest) if excess > 0 => *widest = widest.saturating_sub(excess).max(FITTED_WIDTH_MIN),
            _ => return,
        }
    }
}

/// The text without its middle, because both ends of a key path matter more.
fn shortened(text: &str, own_width: usize, width: usize) -> String {
    let kept = width.saturating_sub(1);
    let (before, after) = (kept / 2, kept - kept / 2);
    let chars = || text.chars();
    chars().take(before).chain(['…']).chain(chars().skip(own_width.saturating_sub(after))).collect()
}

/// The first words of a text that fit into a width.
fn first_words(text: &str, width: usize) -> String {
    let room = width.saturating_sub(2);
    let mut end = 0;
    for (at, _) in text.match_indices(' ') {
        if text.get(..at).unwrap_or_default().chars().count() > room {
            break;
        }
        end = at;
    }
    format!("{} …", text.get(..end).unwrap_or_default()).trim_start().to_owned()
}

/// A time as date and minute, in UTC: `2026-11-22 09:05`.
pub fn when(time: SystemTime) -> String {
    let seconds = match time.duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_secs()).map_or(i64::MIN, |seconds| -seconds),
    };
    let (days, in_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // The Gregorian calendar in eras of 400 years from 0000-03-01, so that a leap day ends its
    // year. Source: H. Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days.
    let days = days + 719_468;
    let (era, in_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (in_era - in_era / 1460 + in_era / 36_524 - in_era / 146_096) / 365;
    let in_year = in_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * in_year + 2) / 153;
    let day = in_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", in_day / 3600, in_day / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |seconds: u64| when(UNIX_EPOCH + std::time::Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01 00:00");
        assert_eq!(at(951_782_400), "2000-02-29 00:00");
        assert_eq!(at(1_709_251_199), "2024-02-29 23:59");
        assert_eq!(at(4_107_542_400), "2100-03-01 00:00");
        assert_eq!(when(UNIX_EPOCH - std::time::Duration::from_secs(60)), "1969-12-31 23:59");
    }

    fn printed<const N: usize>(table: &Table<N>, look: Look, align: [Align; N]) -> String {
        let mut out = Vec::new();
        table.print_for(look, &mut out, "", align).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_terminal_has_colours_and_its_width() {
        let mut table = Table::new();
        table.titles(["KEY PATH", "BYTES"]);
        table.cell("params/transformer/layers/11/attention/query/kernel");
        table.tinted(Tint::Bad, 1_000_000);
        let align = [Align::Left, Align::Right];
        let shown = printed(&table, Look { width: Some(30), has_colors: false }, align);
        assert_eq!(shown, "KEY PATH                 BYTES\nparams/tra…ery/kernel  1000000\n");
        assert!(shown.lines().all(|line| line.chars().count() <= 30));
        let wide = printed(&table, Look { width: Some(200), has_colors: true }, align);
        assert!(wide.starts_with("\u{1b}[1mKEY PATH\u{1b}[0m  "), "{wide:?}");
        assert!(wide.contains("  \u{1b}[31m1000000\u{1b}[0m\n"), "{wide:?}");
        // If the output is not a terminal, nothing is left out or added.
        let plain = printed(&table, Look::default(), align);
        assert!(plain.contains("layers/11/attention/query/kernel  1000000\n") && !plain.contains('\u{1b}'));
        // Numbers are never shortened, even on a very narrow terminal.
        assert!(printed(&table, Look { width: Some(3), has_colors: false }, align).contains("1000000"));
    }

    #[test]
    fn names_that_would_look_the_same_are_not_shortened() {
        let mut table = Table::new();
        for moment in ["mu", "nu"] {
            table.cell(format_args!("opt_state/0/{moment}/Dense_0/kernel"));
            table.cell(1);
        }
        let align = [Align::Left, Align::Right];
        let shown = printed(&table, Look { width: Some(24), has_colors: false }, align);
        assert!(shown.contains("0/mu/Dense_0") && shown.contains("0/nu/Dense_0"), "{shown}");
        // At this width the keys that differ are visible.
        let shown = printed(&table, Look { width: Some(31), has_colors: false }, align);
        assert!(shown.contains("m…") && shown.contains("n…"), "{shown}");
    }

    #[test]
    fn words_are_left_out_whole() {
        let mut table = Table::new();
        table.cell("loss=0.123456 accuracy=0.987654 lr=0.001");
        let shown = |width| printed(&table, Look { width: Some(width), has_colors: false }, [Align::Words]);
        assert_eq!(shown(40), "loss=0.123456 accuracy=0.987654 lr=0.001\n");
        assert_eq!(shown(34), "loss=0.123456 accuracy=0.987654 …\n");
        assert_eq!(shown(30), "loss=0.123456 …\n");
        assert_eq!(shown(4), "loss=0.123456 …\n");
    }

    #[test]
    fn hidden_columns_take_no_room() {
        let mut table = Table::new();
        ["a", "long cell", "b"].iter().for_each(|cell| table.cell(cell));
        let align = [Align::Left, Align::Hidden, Align::Left];
        assert_eq!(printed(&table, Look::default(), align), "a  b\n");
        assert_eq!(table.width(align), 4);
    }

    #[test]
    fn columns_line_up_and_stay_on_their_line() {
        let mut table = Table::new();
        table.titles(["key", "n"]);
        ["a", "10", "b\u{1b}[31m", "9"].iter().for_each(|cell| table.cell(cell));
        let text = printed(&table, Look::default(), [Align::Left, Align::Right]);
        assert!(text.contains("b\\u{1b}[31m"));
        assert!(text.starts_with("key"));
        assert!(!text.contains(" \n"));
    }
}
