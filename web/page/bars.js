/** Bars of shares: what workers' time was spent on, and the parts of a step. */

import { h } from "./dom.js";
import { duration, share } from "./text.js";
import { timeShares } from "./words.js";

/** Number of the colour and pattern of each part, the same in bars and in curves. @type {Record<string, number>} */
export const PART_COLOURS = { computing: 1, wire: 2, update: 3, others: 4, compute: 1, wait: 4 };
const IDLE_COLOUR = 5;

/**
 * Return a bar whose parts have the widths of their shares, with a list that says the same in words.
 * @param {{ text: string, share: number, colour: number, value: string }[]} parts
 * @param {string} label
 */
export function shareBar(parts, label) {
    return h(
        "div",
        { class: "share-bar", role: "group", "aria-label": label },
        h(
            "div",
            { class: "bar-parts", "aria-hidden": "true" },
            parts.map((each) =>
                h("span", {
                    class: `part part-${each.colour}`,
                    title: `${each.value} ${each.text}`,
                    vars: { share: each.share },
                }),
            ),
        ),
        h(
            "ul",
            { class: "bar-words" },
            parts.map((each) =>
                h(
                    "li",
                    null,
                    h("span", { class: `swatch part-${each.colour}`, "aria-hidden": "true" }),
                    h("b", null, each.value),
                    ` ${each.text}`,
                ),
            ),
        ),
    );
}

/**
 * Return the bar of workers' time, without a list for nothing; null if there was no time.
 * @param {Record<string, number>} workerSeconds
 * @param {string} label
 */
export function timeBar(workerSeconds, label) {
    const parts = timeShares(workerSeconds).map((each) => ({
        text: each.idle ? `idle: ${each.text}` : each.text,
        share: each.share,
        colour: PART_COLOURS[each.name] ?? IDLE_COLOUR,
        value: share(each.share),
    }));
    return parts.length ? shareBar(parts, label) : null;
}

/**
 * Return the bar of a step's parts; null if they are unknown.
 * @param {Record<string, number>} seconds Seconds of `compute`, `wire`, `update` and `wait`.
 * @param {string} label
 */
export function stepBar(seconds, label) {
    const words = { compute: "computing", wire: "wire", update: "update", wait: "waiting" };
    const total = Object.values(seconds).reduce((sum, each) => sum + each, 0);
    if (!(total > 0)) return null;
    const parts = Object.entries(words).map(([name, text]) => ({
        text,
        share: seconds[name] / total,
        colour: PART_COLOURS[name],
        value: duration(seconds[name]),
    }));
    return shareBar(parts, label);
}
