/** The log of a job: read by ranges, drawn by window, searched up to a limit. */

import { logUrl, newestLinesUrl, request } from "./api.js";
import { fill, h, problemBox, setText, time } from "./dom.js";
import {
    addNewer,
    cutLines,
    endWith,
    LineSearch,
    MOST_LINES,
    MOST_MATCHES,
    NEWER_LINES,
    PART_BYTES,
    readContentRange,
    readLine,
    SEARCH_BYTES,
    TAIL_LINES,
    visibleLines,
} from "./log_text.js";
import { bytes, counted, whole } from "./text.js";

/** @typedef {import("./log_text.js").Line} Line */

const LINE_HEIGHT = 20;

/** Lines of which those in view are elements, so that their number costs nothing. */
class LineList {
    /** @type {Line[]} */
    #lines = [];
    #above = h("div", { class: "room" });
    #shown = h("div", { class: "lines" });
    #below = h("div", { class: "room" });

    /**
     * @param {string} label
     * @param {(line: Line) => void} [choose]
     */
    constructor(label, choose) {
        this.choose = choose;
        this.root = h(
            "div",
            {
                class: "log",
                role: "region",
                "aria-label": label,
                tabindex: "0",
                onscroll: () => this.#draw(),
            },
            this.#above,
            this.#shown,
            this.#below,
        );
        this.onscroll = () => {};
        new ResizeObserver(() => this.#draw()).observe(this.root);
    }

    get lines() {
        return this.#lines;
    }

    get isAtEnd() {
        return this.root.scrollTop + this.root.clientHeight >= this.root.scrollHeight - 2 * LINE_HEIGHT;
    }

    /** @param {Line[]} lines @param {{ keepsEnd?: boolean, addedAbove?: number }} [how] */
    set(lines, how = {}) {
        const follows = how.keepsEnd && this.isAtEnd;
        this.#lines = lines;
        this.#draw();
        if (how.addedAbove) this.root.scrollTop += how.addedAbove * LINE_HEIGHT;
        if (follows) this.toEnd();
    }

    toEnd() {
        this.root.scrollTop = this.root.scrollHeight;
        this.#draw();
    }

    /** @param {number} offset */
    toOffset(offset) {
        const place = Math.max(
            0,
            this.#lines.findIndex((each) => each.offset >= offset),
        );
        this.root.scrollTop = Math.max(0, (place - 3) * LINE_HEIGHT);
        this.#draw();
        this.root.focus({ preventScroll: true });
    }

    #draw() {
        const { first, last, above, below } = visibleLines(
            this.#lines.length,
            this.root.scrollTop,
            this.root.clientHeight || 400,
            LINE_HEIGHT,
        );
        this.#above.style.height = `${above}px`;
        this.#below.style.height = `${below}px`;
        fill(
            this.#shown,
            this.#lines.slice(first, last).map((line) => this.#element(line)),
        );
        this.onscroll();
    }

    /** @param {Line} line */
    #element(line) {
        const content = [line.time && time(line.time), " ", h("span", null, line.text)];
        const choose = this.choose;
        return choose
            ? h("button", { type: "button", class: "line", onclick: () => choose(line) }, content)
            : h("div", { class: "line" }, content);
    }
}

export class LogView {
    #job;
    #abort = new AbortController();
    /** @type {AbortController | null} */
    #search = null;
    #list = new LineList("Lines of the log");
    #found = new LineList("Lines that were found", (line) => this.#open(line.offset));
    #status = h("p", { class: "note", "aria-live": "polite" });
    #problem = h("div", null);
    #input = h("input", { type: "search", name: "search", maxlength: "200", autocomplete: "off" });
    #earlier = h("button", { type: "button", onclick: () => this.#readEarlier() }, "Earlier lines");
    #newest = h("button", { type: "button", onclick: () => this.#readEnd() }, "Newest lines");
    /** Offset of the first line in the log, of which only the newest lines were read if it is null. @type {number | null} */
    #first = null;
    #end = 0;
    #size = 0;
    /** Whether the newest lines are the ones that are shown, so that new ones follow them. */
    #isNewest = false;
    #reading = false;

    /** @param {string} job */
    constructor(job) {
        this.#job = job;
        const search = h(
            "form",
            {
                class: "bar",
                role: "search",
                onsubmit: (/** @type {Event} */ event) => {
                    event.preventDefault();
                    this.#look();
                },
            },
            h("label", null, "Search ", this.#input),
            h("button", null, "Search"),
        );
        this.root = h(
            "section",
            { "aria-labelledby": "log-title" },
            h(
                "header",
                { class: "bar" },
                h("h2", { id: "log-title" }, "Log"),
                this.#earlier,
                this.#newest,
                search,
                h("a", { href: logUrl(job), download: `${job}.log` }, "Download"),
            ),
            this.#problem,
            this.#status,
            this.#found.root,
            this.#list.root,
        );
        this.#found.root.hidden = true;
        this.#found.root.classList.add("found");
        this.#readEnd();
    }

    destroy() {
        this.#abort.abort();
        this.#search?.abort();
    }

    get lines() {
        return this.#list.lines;
    }

    /** Called when lines were read. */
    onread = () => {};

    /**
     * Add the line of an event, if the newest lines are the ones that are shown.
     * @param {string} moment
     * @param {string} text
     */
    add(moment, text) {
        if (!this.#isNewest || this.#reading) return;
        const line = { offset: this.#end, ...readLine(`${moment} ${text}`) };
        this.#list.set(addNewer(this.#list.lines, [line]), { keepsEnd: true });
    }

    /** Read the lines that have come since, if the newest lines are the ones that are shown. */
    async readNewer() {
        if (!this.#isNewest) return;
        const newest = await this.#readTail(NEWER_LINES, { quietly: true });
        if (!newest) return;
        const lines = endWith(this.#list.lines, newest, NEWER_LINES);
        if (!lines) {
            await this.#readEnd();
            return;
        }
        this.#list.set(lines, { keepsEnd: true });
        this.#describe();
        this.onread();
    }

    async #readEnd() {
        const lines = await this.#readTail(TAIL_LINES);
        if (!lines) return;
        this.#first = lines.length < TAIL_LINES ? 0 : null;
        this.#isNewest = true;
        this.#list.set(lines);
        this.#describe();
        this.#list.toEnd();
        this.onread();
    }

    async #readEarlier() {
        if (this.#first === null) {
            const known = this.#list.lines.length;
            const part = await this.#readRange(`bytes=-${4 * PART_BYTES}`);
            if (part) this.#take(part, { addedAbove: Math.max(0, part.lines.length - known) });
            return;
        }
        const first = Math.max(0, this.#first - PART_BYTES);
        if (this.#first === 0) return;
        const part = await this.#readRange(`bytes=${first}-${this.#first - 1}`);
        if (!part || !part.lines.length) return;
        const lines = [...part.lines, ...this.#list.lines].slice(0, MOST_LINES);
        this.#first = part.first;
        if (lines.length === MOST_LINES) {
            this.#end = lines[lines.length - 1].offset;
            this.#isNewest = false;
        }
        this.#list.set(lines, { addedAbove: part.lines.length });
        this.#describe();
    }

    /** @param {number} offset */
    async #open(offset) {
        const first = Math.max(0, offset - PART_BYTES / 4);
        const part = await this.#readRange(`bytes=${first}-${first + PART_BYTES - 1}`);
        if (!part) return;
        this.#take(part);
        this.#list.toOffset(offset);
    }

    /** @param {{ lines: Line[], first: number, end: number }} part @param {{ addedAbove?: number }} [how] */
    #take(part, how) {
        this.#first = part.first;
        this.#end = part.end;
        this.#isNewest = this.#end === this.#size;
        this.#list.set(part.lines, how);
        this.#describe();
    }

    /** @param {number} count @param {{ quietly?: boolean }} [how] */
    async #readTail(count, how) {
        const answer = await this.#read(newestLinesUrl(this.#job, count), {}, how);
        return answer && cutLines(answer.content, 0, true).lines;
    }

    /** @param {string} range */
    async #readRange(range) {
        const answer = await this.#read(logUrl(this.#job), { Range: range });
        if (!answer) return null;
        const { content, headers } = answer;
        const place = readContentRange(headers.get("Content-Range")) ?? { first: 0, size: content.length };
        this.#size = place.size ?? Math.max(this.#size, place.first + content.length + 1);
        const isEnd = place.size !== null && place.first + content.length >= place.size;
        return cutLines(content, place.first, isEnd);
    }

    /**
     * @param {string} url
     * @param {Record<string, string>} headers
     * @param {{ quietly?: boolean }} [how]
     */
    async #read(url, headers, how = {}) {
        if (this.#reading) return null;
        this.#reading = true;
        if (!how.quietly) setText(this.#status, "reading …");
        try {
            const answer = await request(url, { headers, signal: this.#abort.signal });
            const content = new Uint8Array(await answer.arrayBuffer());
            fill(this.#problem);
            return { content, headers: answer.headers };
        } catch (error) {
            if (this.#abort.signal.aborted) return null;
            fill(this.#problem, problemBox(error));
            this.#describe();
            return null;
        } finally {
            this.#reading = false;
        }
    }

    #describe() {
        const count = counted(this.#list.lines.length, "line");
        const place =
            this.#first === null
                ? ", the newest ones"
                : `: ${bytes(this.#end - this.#first)} from ${bytes(this.#first)} on${this.#size ? `, of ${bytes(this.#size)}` : ""}`;
        const isWhole = this.#first === 0 && this.#isNewest;
        setText(
            this.#status,
            isWhole ? (this.#list.lines.length ? count : "no lines yet") : `${count}${place}`,
        );
        this.#earlier.disabled = this.#first === 0;
        this.#newest.disabled = this.#isNewest;
    }

    async #look() {
        this.#search?.abort();
        const wanted = this.#input.value;
        this.#found.root.hidden = !wanted;
        if (!wanted) {
            this.#describe();
            return;
        }
        const controller = new AbortController();
        this.#search = controller;
        const search = new LineSearch(wanted);
        let isEnd = false;
        try {
            const answer = await request(logUrl(this.#job), { signal: controller.signal });
            const reader = answer.body?.getReader();
            while (reader) {
                const { value, done } = await reader.read();
                if (done) {
                    search.end();
                    isEnd = true;
                    break;
                }
                search.push(value);
                setText(
                    this.#status,
                    `searching: ${bytes(search.lookedAtBytes)}, ${counted(search.matches, "line")} found`,
                );
                if (search.lookedAtBytes >= SEARCH_BYTES) break;
            }
        } catch (error) {
            if (controller.signal.aborted) return;
            fill(this.#problem, problemBox(error));
        }
        controller.abort();
        this.#found.set(search.lines);
        const shown = search.matches > MOST_MATCHES ? `, the first ${whole(MOST_MATCHES)} are shown` : "";
        const where = isEnd
            ? "in the whole log"
            : `in the first ${bytes(search.lookedAtBytes)}; download the log to search the rest`;
        setText(this.#status, `${counted(search.matches, "line")} found ${where}${shown}`);
    }
}
