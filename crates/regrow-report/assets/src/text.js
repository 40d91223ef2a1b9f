// Numbers and names for people.

// As regrow's `text::printable`: what steers a terminal or a line of text, and what cannot be seen.
const UNPRINTABLE = /[\p{Cc}\p{Cf}\p{Cn}\p{Co}\p{Cs}\p{Zl}\p{Zp}\u115f\u1160\u3164\uffa0]/gu;
const SHORT = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

/** A text from a file, with an escape for each character that cannot be shown. */
export function printable(text) {
  return text.replace(UNPRINTABLE, (c) => SHORT[c] ?? `\\u{${c.codePointAt(0).toString(16)}}`);
}

/** The beginning and the end of a text that is too long. */
export function shorten(text, length = 80) {
  const characters = text.length > length ? Array.from(text.slice(0, 4 * length)) : [];
  if (text.length <= length) return text;
  const tail = Array.from(text.slice(-length)).slice(-Math.floor(length / 3));
  return `${characters.slice(0, length - tail.length - 1).join("")}…${tail.join("")}`;
}

const UNITS = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/** 1536 is `1.5 KiB`. */
export function bytes(count) {
  if (!Number.isFinite(count)) return "";
  if (count < 1024) return `${count} B`;
  let value = count;
  let unit = -1;
  do {
    value /= 1024;
    unit += 1;
  } while (value >= 1023.95 && unit < UNITS.length - 1);
  return `${value.toFixed(1)} ${UNITS[unit]}`;
}

const GROUPED = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** 1234567 is `1,234,567`. */
export const integer = (count) => (Number.isFinite(count) ? GROUPED.format(count) : "");

/** `1 leaf`, `2 leaves`. */
export const counted = (count, one, many) => `${integer(count)} ${count === 1 ? one : many}`;

/** A number in four digits; nothing for what is not known. */
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  if (value === 0) return "0";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  const text =
    size >= 1e6 || size < 1e-3 ? value.toExponential(2) : Number.isInteger(value) ? String(value) : trimmed(value);
  return text.replace("-", "−").replace("e+", "e").replace("e-", "e−");
}

const trimmed = (value) => value.toPrecision(4).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");

/** A part of a whole in percent. */
export function percent(part, whole) {
  if (!(whole > 0)) return "";
  const value = (100 * part) / whole;
  if (value > 0 && value < 0.1) return "< 0.1 %";
  if (value < 100 && value > 99.9) return "> 99.9 %";
  return `${value.toFixed(value < 10 || value % 1 ? 1 : 0)} %`;
}

/** `2026-11-23 08:00:00` in UTC. */
export function time(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const date = new Date(seconds * 1000);
  return Number.isNaN(date.getTime()) ? "" : `${date.toISOString().slice(0, 19).replace("T", " ")}`;
}
