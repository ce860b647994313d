/** Numbers, durations and foreign texts as people read them, in the words of the command (`cli/words.py`). */

const BYTE_UNITS = ["bytes", "kB", "MB", "GB", "TB", "PB"];
/** @type {[number, string][]} */
const TIME_UNITS = [
    [86400, "d"],
    [3600, "h"],
    [60, "min"],
    [1, "s"],
];
const SHORT_ID_CHARACTERS = 8;
export const NOTHING = "–";

/**
 * Group the digits of a whole number by thousands.
 * @param {string} digits
 */
function group(digits) {
    return digits.replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

/**
 * Return a number with so many significant digits, without an exponent up to a million millions, as in "1,230".
 * @param {number | null | undefined} value
 */
export function number(value, digits = 3) {
    if (value === null || value === undefined) return NOTHING;
    if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : "-∞";
    if (value === 0) return "0";
    const rounded = Number(value.toPrecision(digits));
    const size = Math.abs(rounded);
    if (size < 1e-4 || size >= 1e12) return rounded.toExponential().replace("e+", "e");
    const [whole, fraction] = String(rounded).split(".");
    return group(whole) + (fraction ? `.${fraction}` : "");
}

/**
 * Return a whole number with all its digits, as in "10,000".
 * @param {number | null | undefined} value
 */
export function whole(value) {
    return value === null || value === undefined ? NOTHING : group(String(Math.round(value)));
}

/**
 * Return a loss, with four decimals.
 * @param {number | null | undefined} value
 */
export function loss(value) {
    if (value === null || value === undefined) return NOTHING;
    return Number.isFinite(value) ? value.toFixed(4) : number(value);
}

/**
 * Return a share in per cent, as in "71 %" or "0.4 %".
 * @param {number | null | undefined} value
 */
export function share(value) {
    if (value === null || value === undefined) return NOTHING;
    const percent = 100 * value;
    return `${value >= 0.0095 || !value ? percent.toFixed(0) : Number(percent.toPrecision(1))} %`;
}

/**
 * Return a size with one decimal, in powers of 1000, as links and disks are sold.
 * @param {number | null | undefined} value
 */
export function bytes(value) {
    if (value === null || value === undefined) return NOTHING;
    if (value < 1000) return `${Math.round(value)} bytes`;
    let size = value;
    let power = 0;
    while (size >= 999.95 && power < BYTE_UNITS.length - 1) {
        size /= 1000;
        power += 1;
    }
    return `${size.toFixed(1)} ${BYTE_UNITS[power]}`;
}

/**
 * Return a duration in its two largest units, as in "1 h 12 min", or "2.5 s" for a short one.
 * @param {number | null | undefined} seconds
 */
export function duration(seconds) {
    if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return NOTHING;
    if (seconds < 1) return `${Number(Math.max(0, seconds).toPrecision(2))} s`;
    if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
    for (let place = 0; place < TIME_UNITS.length; place += 1) {
        const [size, unit] = TIME_UNITS[place];
        const [smaller, smallerUnit] = TIME_UNITS[Math.min(place + 1, TIME_UNITS.length - 1)];
        const parts = Math.round(seconds / smaller);
        if (parts * smaller < size) continue;
        const rest = parts % (size / smaller);
        const tail = rest && size !== smaller ? ` ${rest} ${smallerUnit}` : "";
        return `${Math.floor((parts * smaller) / size)} ${unit}${tail}`;
    }
    return NOTHING;
}

/**
 * Return how long ago something was, as in "2.5 s ago"; "now" within a second.
 * @param {number | null | undefined} seconds
 */
export function ago(seconds) {
    if (seconds === null || seconds === undefined) return NOTHING;
    return seconds < 1 ? "now" : `${duration(seconds)} ago`;
}

/**
 * Return a number and what it counts, as in "1 job" and "2 jobs".
 * @param {number} count
 * @param {string} noun
 */
export function counted(count, noun, plural = `${noun}s`) {
    return `${whole(count)} ${count === 1 ? noun : plural}`;
}

/**
 * Return the part of a job's id that people tell jobs apart by.
 * @param {string} job
 */
export function shortId(job) {
    return job.slice(-SHORT_ID_CHARACTERS);
}

const TERMINAL_SEQUENCES = new RegExp(
    [
        "\\x1b\\[[0-?]*[ -/]*[@-~]", // colours and cursor movements
        "\\x1b[\\]PX^_][\\s\\S]*?(?:\\x07|\\x1b\\\\|$)", // titles, links and other strings
        "\\x1b[ -/]*[0-~]",
        "\\\\x1b\\[[0-9;?]*[a-zA-Z]", // the same, escaped by the daemon that wrote the line
    ].join("|"),
    "g",
);
const INVISIBLE =
    /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g;
const LONE_SURROGATES = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/**
 * Return a text from elsewhere without the sequences that change what a terminal or a browser shows of other text.
 * @param {string} text
 */
export function plain(text) {
    return text.replace(TERMINAL_SEQUENCES, "").replace(INVISIBLE, "").replace(LONE_SURROGATES, "\ufffd");
}

/**
 * Return a value of a setting as one line.
 * @param {unknown} value
 */
export function settingText(value) {
    if (value === null || value === undefined) return NOTHING;
    return plain(typeof value === "string" ? value : JSON.stringify(value));
}

/**
 * Return a moment in the reader's time zone: the time alone if it is of today.
 * @param {Date} moment
 */
export function localTime(moment, now = new Date()) {
    const time = [moment.getHours(), moment.getMinutes(), moment.getSeconds()].map(twoDigits).join(":");
    if (moment.toDateString() === now.toDateString()) return time;
    const date = [moment.getFullYear(), moment.getMonth() + 1, moment.getDate()].map(twoDigits).join("-");
    return `${date} ${time}`;
}

/**
 * Return a moment in UTC.
 * @param {Date} moment
 */
export function utcTime(moment) {
    return `${moment.toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

/** @param {number} value */
function twoDigits(value) {
    return String(value).padStart(2, "0");
}
