/** A chart of curves by uPlot: readout, marks, zoom by pointer and keyboard, and a table behind it. */

import { axisText, placeText, WHOLE_STEPS } from "./axis.js";
import { fill, h, setText, table } from "./dom.js";
import { rowsOfTable } from "./history.js";
import { KINDS } from "./marks.js";
import { counted, whole } from "./text.js";

/** @typedef {import("./history.js").Values} Values */
/** @typedef {import("./marks.js").Mark} Mark */

/**
 * @typedef {Object} Curve
 * @property {string} label
 * @property {number} colour Number of a colour of page.css, from 1; it gives the dashes, too.
 * @property {(number | null | undefined)[]} values What is drawn.
 * @property {(number | null | undefined)[]} [shown] What the readout and the table show, if that is something else.
 * @property {Values | null} [low]
 * @property {Values | null} [high]
 * @property {boolean} [filled] Whether the area down to the curve before it is filled.
 * @property {boolean} [points] Whether each value is a point, as they are few.
 *
 * @typedef {Object} Picture
 * @property {number[]} places Places on the axis, in ascending order.
 * @property {number[]} steps Step of each place.
 * @property {import("./axis.js").Kind} axis
 * @property {boolean} logarithmic
 * @property {Curve[]} curves
 * @property {(Mark & { place: number })[]} marks
 * @property {string} note What the curves leave out.
 *
 * @typedef {Object} ChartOptions
 * @property {string} title
 * @property {(value: number | null | undefined) => string} format
 * @property {(value: number) => string} formatAxis
 * @property {string} group Charts of one group show the same place.
 * @property {(range: { first: number, last: number } | null) => void} zoom Takes a range of steps; null for all.
 * @property {(step: number) => void} [choose] Takes the step that was pointed at.
 */

const HEIGHT = 200;
const LEAST_MARK_PIXELS = 7;
/** @type {number[][]} */
const DASHES = [[], [6, 3], [2, 2], [10, 3, 2, 3], [4, 4], [1, 3], [12, 4], [6, 2, 2, 2]];

/** @param {number} colour */
function dashOf(colour) {
    return DASHES[(colour - 1) % DASHES.length];
}

/** @param {string} name */
function variable(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export class Chart {
    /** @type {uPlot | null} */
    #plot = null;
    #shape = "";
    /** @type {Picture | null} */
    #picture = null;
    #options;
    #canvas = h("div", { class: "canvas" });
    #note = h("p", { class: "note" });
    #readout = h("div", { class: "readout" });
    #rows = h("div", null);
    #table;
    #observer = new ResizeObserver(() => this.#resize());
    #theme = matchMedia("(prefers-color-scheme: dark)");
    #redraw = () => this.#plot?.redraw(false);

    /** @param {ChartOptions} options */
    constructor(options) {
        this.#options = options;
        this.#table = h(
            "details",
            { ontoggle: () => this.#fillTable() },
            h("summary", null, "Data as a table"),
            this.#rows,
        );
        const focus = h(
            "div",
            {
                class: "plot",
                tabindex: "0",
                role: "group",
                "aria-label": `${options.title}: curve, arrow keys move along it`,
                onkeydown: (/** @type {KeyboardEvent} */ event) => this.#key(event),
            },
            this.#canvas,
        );
        this.root = h(
            "figure",
            { class: "chart" },
            h("figcaption", null, h("strong", null, options.title), this.#readout),
            focus,
            this.#note,
            this.#table,
        );
        this.#observer.observe(this.#canvas);
        this.#theme.addEventListener("change", this.#redraw);
    }

    destroy() {
        this.#observer.disconnect();
        this.#theme.removeEventListener("change", this.#redraw);
        this.#plot?.destroy();
    }

    /** @param {Picture} picture */
    draw(picture) {
        this.#picture = picture;
        const drawn = picture.curves.some((curve) =>
            curve.values.some((each) => each !== null && each !== undefined),
        );
        setText(
            this.#note,
            drawn ? picture.note : ["no values yet", picture.note].filter(Boolean).join("; "),
        );
        const shape = JSON.stringify([
            drawn,
            picture.axis,
            picture.logarithmic,
            picture.curves.map((each) => [each.label, each.colour, Boolean(each.low), each.filled]),
        ]);
        const data = /** @type {uPlot.AlignedData} */ ([
            picture.places,
            ...picture.curves.flatMap((each) =>
                each.low && each.high ? [each.values, each.low, each.high] : [each.values],
            ),
        ]);
        if (!drawn) {
            this.#plot?.destroy();
            this.#plot = null;
        } else if (this.#plot && shape === this.#shape) {
            this.#plot.setData(data);
        } else {
            this.#plot?.destroy();
            this.#plot = new uPlot(this.#settings(picture), data, this.#canvas);
        }
        this.#shape = shape;
        this.#show(null);
        if (this.#table.open) this.#fillTable();
    }

    #resize() {
        const width = Math.floor(this.#canvas.clientWidth);
        if (this.#plot && width > 0 && width !== this.#plot.width)
            this.#plot.setSize({ width, height: HEIGHT });
    }

    /**
     * @param {Picture} picture
     * @returns {uPlot.Options}
     */
    #settings(picture) {
        /** @type {uPlot.Series[]} */
        const series = [{}];
        /** @type {uPlot.Band[]} */
        const bands = [];
        picture.curves.forEach((curve) => {
            const stroke = () => variable(`--curve-${curve.colour}`);
            series.push({
                label: curve.label,
                stroke,
                width: 1.5,
                dash: dashOf(curve.colour),
                spanGaps: Boolean(curve.points),
                points: { show: Boolean(curve.points), size: 5 },
            });
            const own = series.length - 1;
            if (curve.low && curve.high) {
                const edge = { stroke: "transparent", width: 0, points: { show: false } };
                series.push(
                    { label: `${curve.label}, lowest`, ...edge },
                    { label: `${curve.label}, highest`, ...edge },
                );
                bands.push({ series: [own + 2, own + 1], fill: () => variable(`--area-${curve.colour}`) });
            }
            if (curve.filled && own > 1)
                bands.push({ series: [own, own - 1], fill: () => variable(`--area-${curve.colour}`) });
        });
        if (picture.curves[0]?.filled) series[1].fill = () => variable(`--area-${picture.curves[0].colour}`);
        const lines = {
            stroke: () => variable("--ink-soft"),
            font: "11px system-ui, sans-serif",
            grid: { stroke: () => variable("--line"), width: 1 },
            ticks: { stroke: () => variable("--line"), width: 1, size: 4 },
        };
        return {
            width: Math.max(200, Math.floor(this.#canvas.clientWidth)),
            height: HEIGHT,
            series,
            bands,
            padding: [14, 20, 0, 0],
            legend: { show: false },
            cursor: {
                sync: { key: this.#options.group, setSeries: false },
                drag: { x: true, y: false, setScale: false },
                points: { size: 6 },
                bind: {
                    dblclick: () => () => {
                        this.#options.zoom(null);
                        return null;
                    },
                },
            },
            scales: {
                x: { time: picture.axis === "time" },
                y: picture.logarithmic ? { distr: 3, log: 10 } : {},
            },
            axes: [
                {
                    ...lines,
                    size: 30,
                    space: picture.axis === "time" ? 90 : 50,
                    ...(picture.axis === "steps" ? { incrs: WHOLE_STEPS } : {}),
                    values: (_, places) => places.map((each) => axisText(each, picture.axis, places)),
                },
                {
                    ...lines,
                    size: 62,
                    values: (_, values) =>
                        values.map((each) => (each === null ? "" : this.#options.formatAxis(each))),
                },
            ],
            hooks: {
                setCursor: [(plot) => this.#show(plot.cursor.idx ?? null)],
                setSelect: [(plot) => this.#select(plot)],
                draw: [(plot) => this.#drawMarks(plot)],
                ready: [
                    (plot) =>
                        plot.over.addEventListener("click", () => {
                            const row = plot.cursor.idx;
                            if (row !== null && row !== undefined && this.#picture)
                                this.#options.choose?.(Math.round(this.#picture.steps[row]));
                        }),
                ],
            },
        };
    }

    /** @param {uPlot} plot */
    #select(plot) {
        const { left, width } = plot.select;
        if (width < 4 || !this.#picture) return;
        const [first, last] = [plot.posToIdx(left), plot.posToIdx(left + width)];
        plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        const { steps } = this.#picture;
        if (last > first)
            this.#options.zoom({ first: Math.floor(steps[first]), last: Math.ceil(steps[last]) });
    }

    /** @param {KeyboardEvent} event */
    #key(event) {
        const moves = /** @type {Record<string, number>} */ ({
            ArrowLeft: -1,
            ArrowRight: 1,
            PageUp: -20,
            PageDown: 20,
            Home: -Infinity,
            End: Infinity,
        });
        const plot = this.#plot;
        if (!plot || !this.#picture) return;
        const rows = this.#picture.places.length;
        const at = plot.cursor.idx ?? rows - 1;
        if (event.key === "Enter") this.#options.choose?.(Math.round(this.#picture.steps[at]));
        if (event.key === "Escape") this.#options.zoom(null);
        if (!(event.key in moves)) return;
        event.preventDefault();
        const row = Math.max(0, Math.min(rows - 1, at + moves[event.key]));
        plot.setCursor({ left: plot.valToPos(this.#picture.places[row], "x"), top: HEIGHT / 2 });
    }

    /**
     * Show the values of a row, or the newest ones.
     * @param {number | null} row
     */
    #show(row) {
        const picture = this.#picture;
        if (!picture) return;
        const items = picture.curves.map((curve) => {
            const values = curve.shown ?? curve.values;
            let at = row ?? values.length - 1;
            if (row === null || curve.points)
                while (at > 0 && (values[at] === null || values[at] === undefined)) at -= 1;
            return h(
                "span",
                { class: "value" },
                h("span", {
                    class: "key",
                    "aria-hidden": "true",
                    vars: {
                        key: `var(--curve-${curve.colour})`,
                        dash: dashOf(curve.colour).length ? "dashed" : "solid",
                    },
                }),
                `${curve.label} `,
                h("b", null, this.#options.format(values[at])),
            );
        });
        const place = row === null ? null : placeText(picture.places[row], picture.axis);
        const step =
            row === null ? null : picture.axis === "steps" ? null : ` (step ${whole(picture.steps[row])})`;
        fill(this.#readout, place && h("span", { class: "place" }, place, step), items);
    }

    /** @param {uPlot} plot */
    #drawMarks(plot) {
        if (!this.#picture) return;
        const { ctx, bbox } = plot;
        const scale = devicePixelRatio;
        /** @type {Record<string, number>} */
        const lastOf = {};
        ctx.save();
        ctx.font = `${10 * scale}px system-ui, sans-serif`;
        ctx.textAlign = "center";
        for (const mark of this.#picture.marks) {
            const x = Math.round(plot.valToPos(mark.place, "x", true));
            if (x < bbox.left || x > bbox.left + bbox.width) continue;
            if (x - (lastOf[mark.kind] ?? -Infinity) < LEAST_MARK_PIXELS * scale) continue;
            lastOf[mark.kind] = x;
            ctx.strokeStyle = ctx.fillStyle = variable(`--mark-${mark.kind}`);
            ctx.lineWidth = scale;
            ctx.setLineDash(mark.kind === "checkpoint" ? [2 * scale, 4 * scale] : [4 * scale, 2 * scale]);
            ctx.beginPath();
            ctx.moveTo(x, bbox.top);
            ctx.lineTo(x, bbox.top + bbox.height);
            ctx.stroke();
            ctx.fillText(KINDS[mark.kind].letter, x, bbox.top - 3 * scale);
        }
        ctx.restore();
    }

    #fillTable() {
        const picture = this.#picture;
        if (!this.#table.open || !picture) return;
        const { every, chosen } = rowsOfTable(picture.places.length);
        const isStep = picture.axis === "steps";
        const columns = [
            ...(isStep ? [] : [picture.axis === "tokens" ? "tokens" : "time"]),
            "step",
            ...picture.curves.map((each) => each.label),
        ];
        const rows = chosen.map((row) => [
            ...(isStep ? [] : [placeText(picture.places[row], picture.axis)]),
            whole(picture.steps[row]),
            ...picture.curves.map((curve) => this.#options.format((curve.shown ?? curve.values)[row])),
        ]);
        const caption = `${this.#options.title}${every > 1 ? `, each ${counted(every, "row")}` : ""}`;
        fill(
            this.#rows,
            table(
                caption,
                columns.map((text) => ({ text, number: true })),
                rows,
            ),
        );
    }
}
