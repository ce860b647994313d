/** The checkpoints of a job, newest first, with their files to download. */

import { checkpoints, checkpointUrl } from "./api.js";
import { fill, h, patch, problemBox } from "./dom.js";
import { bytes, whole } from "./text.js";

/** @typedef {import("./api.js").Checkpoint} Checkpoint */

export class CheckpointList {
    #job;
    #abort = new AbortController();
    #list = h("ul", { class: "checkpoints" });
    #problem = h("div", null);
    #older = h(
        "button",
        { type: "button", hidden: true, onclick: () => this.#readOlder() },
        "Older checkpoints",
    );
    /** @type {Checkpoint[]} */
    #known = [];
    /** @type {number | null} */
    #next = null;

    /** @param {string} job */
    constructor(job) {
        this.#job = job;
        this.root = h(
            "section",
            { "aria-labelledby": "checkpoints-title" },
            h("h2", { id: "checkpoints-title" }, "Checkpoints"),
            this.#problem,
            this.#list,
            this.#older,
        );
    }

    /** Called with the checkpoints that were read. @type {(found: Checkpoint[]) => void} */
    onread = () => {};

    destroy() {
        this.#abort.abort();
    }

    /** Read the newest ones. */
    async read() {
        await this.#read(null);
    }

    async #readOlder() {
        if (this.#next !== null) await this.#read(this.#next);
    }

    /** @param {number | null} before */
    async #read(before) {
        try {
            const found = await checkpoints(this.#job, before, this.#abort.signal);
            this.#known = before === null ? found.checkpoints : [...this.#known, ...found.checkpoints];
            this.#next = found.next_before;
            fill(this.#problem);
            this.#draw();
            this.onread(found.checkpoints);
        } catch (error) {
            if (!this.#abort.signal.aborted) fill(this.#problem, problemBox(error));
        }
    }

    #draw() {
        patch(
            this.#list,
            this.#known.map((each) => this.#item(each)),
        );
        if (!this.#known.length) patch(this.#list, h("li", null, "None yet."));
        this.#older.hidden = this.#next === null;
    }

    /** @param {Checkpoint} checkpoint */
    #item(checkpoint) {
        const files = Object.entries(checkpoint.files);
        const size = files.reduce((sum, [, file]) => sum + file.bytes, 0);
        return h(
            "li",
            null,
            h(
                "details",
                null,
                h("summary", null, `step ${whole(checkpoint.step)}, ${bytes(size)}`),
                h(
                    "ul",
                    null,
                    files.map(([name, file]) =>
                        h(
                            "li",
                            null,
                            h(
                                "a",
                                { href: checkpointUrl(this.#job, checkpoint.step, name), download: name },
                                name,
                            ),
                            ` ${bytes(file.bytes)} `,
                            h("code", { class: "hash", title: "SHA-256" }, file.sha256),
                        ),
                    ),
                ),
            ),
        );
    }
}
