/** What a job will take, in words. */

import { facts, h } from "./dom.js";
import { bytes, NOTHING, number, settingText, share, whole } from "./text.js";

/** @typedef {import("./api.js").Takes} Takes */

/** @type {Record<string, [string, (value: any) => string]>} */
const WORDS = {
    verdict: ["verdict", settingText],
    parameters: ["parameters", whole],
    model_bytes: ["model", bytes],
    chip_bytes: ["memory of a chip at its peak", bytes],
    chip_has_bytes: ["memory that a chip has", bytes],
    min_workers: ["workers, at least", whole],
    max_workers: ["workers, at most", whole],
    mesh_shape: [
        "mesh of a worker",
        (value) => (Array.isArray(value) ? value.join(" × ") : settingText(value)),
    ],
    data_parallel: ["data parallel", whole],
    tensor_parallel: ["tensor parallel", whole],
    stages: ["stages", whole],
    schedule: ["schedule of the pipeline", settingText],
    bubble: ["bubble", share],
    micro_batches: ["micro-batches of a step", whole],
    steps: ["steps", whole],
    tokens_per_step: ["tokens of a step", whole],
    tokens: ["tokens", whole],
    checkpoint_bytes: ["a checkpoint", bytes],
};

/**
 * Return what a job will take as a list. What this page has no words for is shown as it is named.
 * @param {Takes} takes
 */
export function takesList(takes) {
    const known = Object.entries(WORDS).filter(([name]) => name in takes);
    const other = Object.keys(takes).filter((name) => !(name in WORDS));
    return h(
        "div",
        null,
        h("h3", null, "What it will take"),
        facts([
            ...known.map(
                ([name, [word, spell]]) =>
                    /** @type {[string, string]} */ ([
                        word,
                        takes[name] === null ? NOTHING : spell(takes[name]),
                    ]),
            ),
            ...other.map(
                (name) =>
                    /** @type {[string, string]} */ ([
                        name.replaceAll("_", " "),
                        typeof takes[name] === "number" ? number(takes[name], 6) : settingText(takes[name]),
                    ]),
            ),
        ]),
    );
}
