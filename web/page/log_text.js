/** A job's log as bytes and lines: cutting, windows and search. Pure, without a document. */

import { plain } from "./text.js";

export const PART_BYTES = 256 * 1024;
/** Newest lines to begin with, which the server reads from the log's end, however long it is. */
export const TAIL_LINES = 1000;
/** Newest lines to look for new ones in; fewer than are compared. */
export const NEWER_LINES = 300;
export const SEARCH_BYTES = 64 * 1024 * 1024;
export const MOST_MATCHES = 1000;
/** Lines that stay in memory; further ones push out those at the other end. */
export const MOST_LINES = 20_000;
const MOST_LINE_BYTES = 64 * 1024;
const LINE_END = 10;

/** @typedef {{ offset: number, time: string | null, text: string }} Line */

const decoder = new TextDecoder();

/**
 * Return a line of the log: its time, and its text without what a terminal or a browser would take for orders.
 * @param {string} text
 * @returns {Omit<Line, "offset">}
 */
export function readLine(text) {
    const found = /^(\d{4}-\d\d-\d\dT[\d:.]+Z) ?(.*)$/s.exec(text);
    return found ? { time: found[1], text: plain(found[2]) } : { time: null, text: plain(text) };
}

/**
 * Return the whole lines of a part of a log. A part that begins or ends within a line leaves that line out.
 * @param {Uint8Array} bytes
 * @param {number} first Offset of the first byte in the log.
 * @param {boolean} isEnd Whether the log ends there.
 * @returns {{ lines: Line[], first: number, end: number }} The lines, and the range of bytes that they take.
 */
export function cutLines(bytes, first, isEnd) {
    let from = first === 0 ? 0 : bytes.indexOf(LINE_END) + 1;
    const begin = first + from;
    /** @type {Line[]} */
    const lines = [];
    for (;;) {
        let to = bytes.indexOf(LINE_END, from);
        if (to < 0) {
            if (!isEnd || from >= bytes.length) break;
            to = bytes.length;
        }
        const kept = bytes.subarray(from, Math.min(to, from + MOST_LINE_BYTES));
        lines.push({ offset: first + from, ...readLine(decoder.decode(kept)) });
        from = to + 1;
    }
    return { lines, first: begin, end: first + Math.min(from, bytes.length) };
}

/**
 * Return the range in the header of an answer: its first byte, and the log's size if that is known.
 * @param {string | null} header
 */
export function readContentRange(header) {
    const found = /^bytes (\d+)-(\d+)\/(\d+|\*)$/.exec(header ?? "");
    if (!found) return null;
    return { first: Number(found[1]), size: found[3] === "*" ? null : Number(found[3]) };
}

/**
 * Return which lines to draw, and the room for those above them and below.
 * @param {number} count
 * @param {number} scrollTop
 * @param {number} height
 * @param {number} lineHeight
 */
export function visibleLines(count, scrollTop, height, lineHeight, margin = 20) {
    const first = Math.max(0, Math.min(count, Math.floor(scrollTop / lineHeight)) - margin);
    const last = Math.min(count, Math.ceil((scrollTop + height) / lineHeight) + margin);
    return {
        first,
        last: Math.max(first, last),
        above: first * lineHeight,
        below: Math.max(0, count - last) * lineHeight,
    };
}

/** Newest lines among which ones that come again are looked for. */
const COMPARED_LINES = 500;

/** @param {Line} line */
const keyOf = (line) => `${line.time} ${line.text}`;

/**
 * Return lines with new ones behind them that are not there yet, at most so many: the newest ones.
 * @param {Line[]} lines
 * @param {Line[]} added
 */
export function addNewer(lines, added, most = MOST_LINES) {
    const known = new Set(lines.slice(-COMPARED_LINES).map(keyOf));
    return [...lines, ...added.filter((each) => !known.has(keyOf(each)))].slice(-most);
}

/**
 * Return lines that end with the newest ones of the log, which has lines that no event brings; null if some lie between.
 * @param {Line[]} lines
 * @param {Line[]} newest
 * @param {number} asked Number of newest lines that were asked for; fewer are the whole log.
 */
export function endWith(lines, newest, asked) {
    if (newest.length < asked) return newest;
    const from = Math.max(0, lines.length - COMPARED_LINES);
    const places = new Map(lines.slice(from).map((each, place) => [keyOf(each), from + place]));
    for (const each of newest) {
        const place = places.get(keyOf(each));
        if (place !== undefined) return [...lines.slice(0, place), ...newest].slice(-MOST_LINES);
    }
    return null;
}

/** Looks for a text in the lines of a log that comes in pieces. Case does not count. */
export class LineSearch {
    #wanted;
    /** @type {Uint8Array<ArrayBufferLike>} */
    #rest = new Uint8Array(0);

    /** @param {string} wanted */
    constructor(wanted) {
        this.#wanted = wanted.toLowerCase();
        this.lookedAtBytes = 0;
        this.matches = 0;
        /** @type {Line[]} The first of them. */
        this.lines = [];
    }

    /** @param {Uint8Array} piece */
    push(piece) {
        const bytes = new Uint8Array(this.#rest.length + piece.length);
        bytes.set(this.#rest);
        bytes.set(piece, this.#rest.length);
        const first = this.lookedAtBytes - this.#rest.length;
        this.lookedAtBytes += piece.length;
        const last = bytes.lastIndexOf(LINE_END);
        this.#look(bytes.subarray(0, last + 1), first);
        this.#rest = bytes.length - last - 1 > MOST_LINE_BYTES ? new Uint8Array(0) : bytes.slice(last + 1);
    }

    /** Look at what has no end of line, too. */
    end() {
        this.#look(this.#rest, this.lookedAtBytes - this.#rest.length);
        this.#rest = new Uint8Array(0);
    }

    /** @param {Uint8Array} bytes @param {number} first */
    #look(bytes, first) {
        let from = 0;
        while (from < bytes.length) {
            const found = bytes.indexOf(LINE_END, from);
            const to = found < 0 ? bytes.length : found;
            const text = decoder.decode(bytes.subarray(from, Math.min(to, from + MOST_LINE_BYTES)));
            if (text.toLowerCase().includes(this.#wanted)) {
                this.matches += 1;
                if (this.lines.length < MOST_MATCHES)
                    this.lines.push({ offset: first + from, ...readLine(text) });
            }
            from = to + 1;
        }
    }
}
