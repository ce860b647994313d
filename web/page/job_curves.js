/** The curves of one or several jobs: which charts there are, and how their axes, smoothing and zoom are chosen. */

import { PART_COLOURS } from "./bars.js";
import { Chart } from "./chart.js";
import { h } from "./dom.js";
import {
    breakAtLostSteps,
    countGaps,
    drawable,
    join,
    nearestRow,
    PARTS,
    placesOn,
    smooth,
    stack,
} from "./history.js";
import { counted, duration, loss, NOTHING, number } from "./text.js";

/** @typedef {import("./history.js").History} History */
/** @typedef {import("./history.js").Axis} Axis */
/** @typedef {import("./history.js").Values} Values */
/** @typedef {import("./chart.js").Picture} Picture */
/** @typedef {import("./chart.js").Curve} Curve */
/** @typedef {import("./marks.js").Mark} Mark */
/** @typedef {{ label: string, history: History, tokensPerStep: number | null }} Run */
/** @typedef {{ first: number, last: number }} Zoom */

/** @param {number | null | undefined} value */
const percent = (value) => (value === null || value === undefined ? NOTHING : `${number(100 * value)} %`);
/** @type {{ title: string, columns: string[], format: (value: number | null | undefined) => string }[]} */
const CHARTS = [
    { title: "Loss", columns: ["loss", "validation_loss"], format: loss },
    { title: "Validation loss", columns: ["validation_loss"], format: loss },
    { title: "Gradient norm", columns: ["grad_norm"], format: number },
    { title: "Learning rate", columns: ["learning_rate"], format: number },
    { title: "Step time by part", columns: PARTS, format: duration },
    { title: "Speed", columns: ["tokens_per_second"], format: number },
    { title: "MFU", columns: ["mfu"], format: percent },
];
/** @type {Record<string, string>} */
const WORDS = {
    loss: "training",
    validation_loss: "validation",
    grad_norm: "gradient norm",
    learning_rate: "learning rate",
    tokens_per_second: "tokens/s",
    mfu: "MFU",
    compute_seconds: "computing",
    wire_seconds: "wire",
    update_seconds: "update",
    wait_seconds: "waiting",
    step_seconds: "step",
};
/** Figures that are few, and so drawn as points: those of evaluations. */
const SPARSE = "validation_loss";
/** Figures of each step whose absence is worth a word. */
const FINITE = ["loss", "grad_norm"];
const LEAST_DRAW_MILLISECONDS = 500;
let groups = 0;

export class Curves {
    /** @type {Run[]} */
    #runs = [];
    /** @type {Mark[]} */
    #marks = [];
    #charts;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    #timer;
    /** @type {Zoom | null} */
    #zoom = null;
    #drawn = 0;

    /**
     * @param {{ zoom: (zoom: Zoom | null) => void, choose?: (step: number) => void }} callbacks
     */
    constructor(callbacks) {
        const group = `curves ${(groups += 1)}`;
        const zoom = (/** @type {Zoom | null} */ range) => {
            if (range?.first === this.#zoom?.first && range?.last === this.#zoom?.last) return; // told by each chart of the group
            this.setZoom(range);
            callbacks.zoom(range);
        };
        this.#charts = CHARTS.map((each) => ({
            ...each,
            chart: new Chart({
                title: each.title,
                format: each.format,
                formatAxis: each.format === loss ? (value) => number(value, 5) : each.format,
                group,
                zoom,
                choose: callbacks.choose,
            }),
        }));
        const redraw = () => this.#draw();
        this.axis = h(
            "select",
            { id: `axis-${groups}`, onchange: redraw },
            [
                ["steps", "steps"],
                ["tokens", "tokens"],
                ["time", "time"],
            ].map(([value, word]) => h("option", { value }, word)),
        );
        this.smoothing = h("input", {
            id: `smoothing-${groups}`,
            type: "range",
            min: 0,
            max: 0.99,
            step: 0.01,
            value: 0,
            oninput: redraw,
        });
        this.logarithmic = h("input", { type: "checkbox", onchange: redraw });
        this.first = h("input", { id: `first-${groups}`, type: "number", min: 0, step: 1 });
        this.last = h("input", { id: `last-${groups}`, type: "number", min: 0, step: 1 });
        this.all = h("button", { type: "button", disabled: true, onclick: () => zoom(null) }, "All steps");
        const range = h(
            "form",
            {
                class: "bar",
                "aria-label": "Zoom",
                onsubmit: (/** @type {Event} */ event) => {
                    event.preventDefault();
                    const [first, last] = [Number(this.first.value || 0), Number(this.last.value || 0)];
                    if (last > first) zoom({ first, last });
                    else if (!this.first.value && !this.last.value) zoom(null);
                },
            },
            h("label", { for: this.first.id }, "Steps"),
            this.first,
            h("label", { for: this.last.id }, "to"),
            this.last,
            h("button", null, "Zoom"),
            this.all,
        );
        this.root = h(
            "div",
            null,
            h(
                "div",
                { class: "bar controls" },
                h("label", { for: this.axis.id }, "Over"),
                this.axis,
                h("label", { for: this.smoothing.id }, "Smoothing"),
                this.smoothing,
                h("label", { class: "check" }, this.logarithmic, " logarithmic"),
                range,
            ),
            h("p", { class: "note" }, "Drag across a curve to zoom, double-click to see all of it."),
            h(
                "div",
                { class: "charts" },
                this.#charts.map((each) => each.chart.root),
            ),
        );
    }

    destroy() {
        clearTimeout(this.#timer);
        for (const { chart } of this.#charts) chart.destroy();
    }

    get zoom() {
        return this.#zoom;
    }

    /** @param {Zoom | null} zoom */
    setZoom(zoom) {
        this.#zoom = zoom;
        this.all.disabled = zoom === null;
        this.first.value = zoom ? String(zoom.first) : "";
        this.last.value = zoom ? String(zoom.last) : "";
    }

    /**
     * Draw what is new, at most twice a second.
     * @param {Run[]} runs
     * @param {Mark[]} marks
     */
    set(runs, marks) {
        this.#runs = runs;
        this.#marks = marks;
        for (const option of this.axis.options) {
            if (option.value === "tokens") option.disabled = !runs.some((each) => each.tokensPerStep);
        }
        if (this.#timer !== undefined) return;
        const since = performance.now() - this.#drawn;
        this.#timer = setTimeout(
            () => {
                this.#timer = undefined;
                this.#draw();
            },
            Math.max(0, LEAST_DRAW_MILLISECONDS - since),
        );
    }

    #draw() {
        this.#drawn = performance.now();
        for (const each of this.#charts) {
            const isOne = this.#runs.length === 1;
            each.chart.root.hidden = isOne && each.columns[0] === SPARSE; // which is in the chart of the losses
            each.chart.draw(isOne ? this.#pictureOfOne(each.columns) : this.#pictureOfSeveral(each.columns));
        }
    }

    /** @param {string[]} columns @returns {Picture} */
    #pictureOfOne(columns) {
        const [{ history, tokensPerStep }] = this.#runs;
        const logarithmic = this.logarithmic.checked && columns !== PARTS;
        const axis = /** @type {Axis} */ (this.axis.value);
        const known = columns.filter((name) => history.figures.has(name));
        /** @type {Values[]} */
        const shown = known.map((name) => drawable(history.figures.get(name)?.mean ?? []));
        const edges = known.map((name) => {
            const { low, high } = history.figures.get(name) ?? { low: null, high: null };
            const isBand = low && high && history.stepsPerRow > 1 && columns !== PARTS && name !== SPARSE;
            return isBand ? [drawable(low, logarithmic), drawable(high, logarithmic)] : null;
        });
        const flat = [...shown, ...edges.flatMap((each) => each ?? [])];
        const places = placesOn(history, axis, tokensPerStep);
        const broken = breakAtLostSteps(history.steps, places, flat, history.stepsPerRow);
        const values = broken.columns.slice(0, known.length);
        const weight = Number(this.smoothing.value);
        const smoothed = values.map((each, place) =>
            known[place] === SPARSE ? each : drawable(smooth(each, weight), logarithmic),
        );
        const drawn = columns === PARTS ? stack(smoothed) : smoothed;
        let edge = known.length;
        const curves = known.map((name, place) => {
            const band = edges[place] ? [broken.columns[edge], broken.columns[edge + 1]] : null;
            if (band) edge += 2;
            const colour = columns === PARTS ? PART_COLOURS[name.replace("_seconds", "")] : place + 1;
            return {
                label: WORDS[name],
                colour,
                values: drawn[place],
                shown: smoothed[place],
                filled: columns === PARTS,
                points: name === SPARSE,
                low: band?.[0] ?? null,
                high: band?.[1] ?? null,
            };
        });
        const marks = this.#marks
            .filter(
                (mark) =>
                    history.steps.length &&
                    mark.step >= history.steps[0] &&
                    mark.step <= history.steps[history.steps.length - 1] + history.stepsPerRow,
            )
            .map((mark) => ({
                ...mark,
                place: placeOf(mark, broken.steps, broken.places, axis, tokensPerStep),
            }));
        return {
            places: broken.places,
            steps: broken.steps,
            axis,
            logarithmic,
            curves,
            marks,
            note: this.#note(history, known, logarithmic, weight),
        };
    }

    /**
     * @param {History} history
     * @param {string[]} columns
     * @param {boolean} logarithmic
     * @param {number} weight
     */
    #note(history, columns, logarithmic, weight) {
        const parts = [];
        const drawn = columns.some((name) => history.figures.get(name)?.mean.some(Number.isFinite));
        if (history.stepsPerRow > 1 && columns !== PARTS && drawn)
            parts.push(
                `means of ${counted(history.stepsPerRow, "step")}, with the lowest and highest values`,
            );
        for (const name of columns) {
            const gaps = countGaps(history.figures.get(name)?.mean ?? []);
            if (FINITE.includes(name) && gaps.missing)
                parts.push(`${counted(gaps.missing, "row")} with NaN, infinity or nothing are gaps`);
            if (logarithmic && gaps.nonPositive)
                parts.push(
                    `${counted(gaps.nonPositive, "value")} of 0 or below can't be shown on this scale`,
                );
        }
        if (weight > 0 && drawn) parts.push(`smoothed by ${weight}`);
        return parts.join("; ");
    }

    /** @param {string[]} columns @returns {Picture} */
    #pictureOfSeveral(columns) {
        const name = columns === PARTS ? "step_seconds" : columns[0];
        const logarithmic = this.logarithmic.checked;
        const axis = /** @type {Axis} */ (this.axis.value);
        const weight = Number(this.smoothing.value);
        const parts = this.#runs.map(({ history, tokensPerStep }) => {
            const places = placesOn(history, axis, tokensPerStep);
            const since = axis === "time" ? places.map((each) => each - places[0]) : places;
            const broken = breakAtLostSteps(
                history.steps,
                since,
                [drawable(history.figures.get(name)?.mean ?? [])],
                history.stepsPerRow,
            );
            const values = name === SPARSE ? broken.columns[0] : smooth(broken.columns[0], weight);
            return { places: broken.places, steps: broken.steps, values: drawable(values, logarithmic) };
        });
        const { places, columns: joined } = join(parts);
        const longest = parts.reduce(
            (one, other) => (other.steps.length > one.steps.length ? other : one),
            parts[0],
        );
        const steps =
            axis === "steps" || !longest
                ? places
                : places.map((place) => longest.steps[nearestRow(longest.places, place)]);
        const curves = this.#runs.map((run, number) => ({
            label: run.label,
            colour: number + 1,
            values: joined[number],
            points: name === SPARSE,
        }));
        return {
            places,
            steps,
            axis: axis === "time" ? "elapsed" : axis,
            logarithmic,
            curves,
            marks: [],
            note: weight > 0 ? `smoothed by ${weight}` : "",
        };
    }
}

/**
 * Return the place of a mark on an axis.
 * @param {Mark} mark
 * @param {number[]} steps
 * @param {number[]} places
 * @param {Axis} axis
 * @param {number | null} tokensPerStep
 */
function placeOf(mark, steps, places, axis, tokensPerStep) {
    if (axis === "steps") return mark.step;
    if (axis === "tokens" && tokensPerStep) return mark.step * tokensPerStep;
    return places[nearestRow(steps, mark.step)] ?? 0;
}
