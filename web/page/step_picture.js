/** A step's picture: what its time was spent on and whom it waited for, beside the steps around it. */

import { metrics } from "./api.js";
import { stepBar } from "./bars.js";
import { fill, h, problemBox } from "./dom.js";
import { PARTS, readHistory } from "./history.js";
import { duration, loss, whole } from "./text.js";

const AROUND = 3;
const COLUMNS = ["step_seconds", ...PARTS, "loss", "waited_for"];

export class StepPicture {
    #job;
    #abort = new AbortController();
    #input = h("input", { id: "picture-step", type: "number", min: 1, step: 1, required: true });
    #steps = h("ol", { class: "steps", "aria-live": "polite" });

    /** @param {string} job */
    constructor(job) {
        this.#job = job;
        this.root = h(
            "section",
            { "aria-labelledby": "picture-title" },
            h("h2", { id: "picture-title" }, "A step's picture"),
            h(
                "form",
                {
                    class: "bar",
                    onsubmit: (/** @type {Event} */ event) => {
                        event.preventDefault();
                        this.show(Number(this.#input.value));
                    },
                },
                h("label", { for: "picture-step" }, "Step"),
                this.#input,
                h("button", null, "Show"),
                h("span", { class: "note" }, "or click on a curve"),
            ),
            this.#steps,
        );
    }

    destroy() {
        this.#abort.abort();
    }

    /** @param {number} step */
    async show(step) {
        this.#input.value = String(step);
        try {
            const range = { columns: COLUMNS, from: Math.max(1, step - AROUND), to: step + AROUND };
            const history = readHistory(await metrics(this.#job, range, this.#abort.signal));
            const items = history.steps.map((each, row) => {
                const value = (/** @type {string} */ name) => history.figures.get(name)?.mean[row] ?? NaN;
                const seconds = Object.fromEntries(
                    PARTS.map((name) => [name.replace("_seconds", ""), value(name)]),
                );
                const waited = history.waitedFor[row];
                return h(
                    "li",
                    { class: each === step && "chosen", "aria-current": each === step && "true" },
                    h(
                        "p",
                        null,
                        h("b", null, `step ${whole(each)}`),
                        ` ${duration(value("step_seconds"))}, loss ${loss(value("loss"))}${waited ? `, waited for ${waited}` : ""}`,
                    ),
                    stepBar(seconds, `Parts of step ${each}`) ??
                        h(
                            "p",
                            { class: "note" },
                            "its parts are unknown: it was the first one after a start",
                        ),
                );
            });
            fill(
                this.#steps,
                items.length ? items : h("li", null, `no row of the history is near step ${whole(step)}`),
            );
        } catch (error) {
            if (!this.#abort.signal.aborted) fill(this.#steps, h("li", null, problemBox(error)));
        }
    }
}
