/** A worker's mesh, chip by chip: a table whose heads are the places along the job's axes. */

import { h } from "./dom.js";
import { SIGNS } from "./words.js";

/** @typedef {import("./api.js").Worker} Worker */

const AXIS_WORDS = /** @type {Record<string, string>} */ ({
    dp: "data parallel",
    tp: "tensor parallel",
    fsdp: "fully sharded data parallel",
});
const MOST_CHIPS = 256;

/**
 * Return the axis of each dimension of a mesh, in its order; dimensions of size 1 have none.
 * @param {number[]} mesh
 * @param {Record<string, number> | null | undefined} axes In the order of the dimensions above 1.
 * @returns {(string | null)[]}
 */
export function axesOf(mesh, axes) {
    const names = Object.keys(axes ?? {});
    return mesh.map((size) => (size > 1 ? (names.shift() ?? null) : null));
}

/**
 * Return the name of a place along a dimension, as in "tp 3", or "row 1" where no axis is known.
 * @param {string | null} axis
 * @param {string} dimension
 * @param {number} place
 */
export function placeName(axis, dimension, place) {
    return `${axis ?? dimension} ${place}`;
}

/**
 * Return the stages of a worker, as in "stage 1" or "stages 0 to 1"; empty without a pipeline.
 * @param {{ first_stage: number | null, stages: number }} worker
 */
export function stageText(worker) {
    if (!worker.stages || worker.first_stage === null) return "";
    const last = worker.first_stage + worker.stages - 1;
    return worker.stages === 1 ? `stage ${worker.first_stage}` : `stages ${worker.first_stage} to ${last}`;
}

/**
 * Return the picture of a worker's mesh; null if its shape is unknown.
 * @param {Worker} worker
 * @param {string} doing What the worker does, for people.
 */
export function meshTable(worker, doing) {
    const mesh = worker.mesh;
    if (!mesh || !mesh.length || mesh.reduce((product, each) => product * each, 1) > MOST_CHIPS) return null;
    const [rows, columns] = mesh.length === 1 ? [1, mesh[0]] : mesh;
    const [rowAxis, columnAxis] = axesOf([rows, columns], worker.axes);
    const stage = stageText(worker);
    const sign = SIGNS[worker.activity ?? ""] ?? SIGNS[worker.state] ?? "●";
    const words = Object.entries(worker.axes ?? {}).map(
        ([name, size]) => `${AXIS_WORDS[name] ?? name} (${name}) over ${size}`,
    );
    const caption = [
        `${rows} × ${columns} ${rows * columns === 1 ? "chip" : "chips"}`,
        words.join(", "),
        stage,
    ]
        .filter(Boolean)
        .join(" · ");
    const kind = (worker.activity ?? worker.state).replace(/\W/g, "-");
    const body = Array.from({ length: rows }, (_, row) =>
        h(
            "tr",
            null,
            h("th", { scope: "row" }, placeName(rowAxis, "row", row)),
            Array.from({ length: columns }, (_, column) => {
                const place = row * columns + column;
                return h(
                    "td",
                    { class: `chip is-${kind}`, title: `chip ${place}: ${doing}` },
                    h("span", { "aria-hidden": "true" }, sign),
                    h("span", { class: "chip-number" }, place),
                );
            }),
        ),
    );
    const head = h(
        "tr",
        null,
        h("td", null),
        Array.from({ length: columns }, (_, column) =>
            h("th", { scope: "col" }, placeName(columnAxis, "column", column)),
        ),
    );
    return h(
        "table",
        { class: "mesh" },
        h("caption", null, caption),
        h("thead", null, head),
        h("tbody", null, body),
    );
}
