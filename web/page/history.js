/** The history of a job's figures as columns of numbers, ready to be drawn: pure, without a document. */

/** @typedef {import("./api.js").Metrics} Metrics */
/** @typedef {{ mean: number[], low: number[] | null, high: number[] | null }} Figures */
/** @typedef {"steps" | "tokens" | "time"} Axis */
/** @typedef {(number | null)[]} Values Numbers to draw, where null is a gap. */

export const PARTS = ["compute_seconds", "wire_seconds", "update_seconds", "wait_seconds"];
const MOST_ROWS_OF_TABLE = 500;

/**
 * @typedef {Object} History
 * @property {number} stepsPerRow
 * @property {number[]} steps The column `step`.
 * @property {Map<string, Figures>} figures Columns by name; NaN stands for a missing number.
 * @property {(string | null)[]} waitedFor
 */

/**
 * Return the numbers of a column.
 * @param {string} base64 Little-endian float64.
 */
export function decodeNumbers(base64) {
    const text = atob(base64);
    const view = new DataView(new ArrayBuffer(text.length));
    for (let place = 0; place < text.length; place += 1) view.setUint8(place, text.charCodeAt(place));
    return Array.from({ length: Math.floor(text.length / 8) }, (_, place) =>
        view.getFloat64(8 * place, true),
    );
}

/**
 * Return an answer's columns. Where rows summarise steps, each figure has its mean, its lowest and its highest value.
 * @param {Metrics} metrics
 * @returns {History}
 */
export function readHistory(metrics) {
    /** @type {Map<string, Figures>} */
    const figures = new Map();
    /** @type {(string | null)[]} */
    let waitedFor = [];
    for (const column of metrics.columns) {
        if (column.kind === "text") {
            if (column.name === "waited_for") waitedFor = column.values ?? [];
            continue;
        }
        const numbers = decodeNumbers(column.base64 ?? "");
        const found = figures.get(column.name) ?? { mean: [], low: null, high: null };
        if (column.kind === "min") found.low = numbers;
        else if (column.kind === "max") found.high = numbers;
        else found.mean = numbers;
        figures.set(column.name, found);
    }
    const step = figures.get("step") ?? { mean: [], low: null, high: null };
    figures.set("step", step);
    return { stepsPerRow: metrics.steps_per_row, steps: step.mean, figures, waitedFor };
}

/** @returns {History} */
export function emptyHistory() {
    return readHistory({ steps_per_row: 1, columns: [], next_from: null });
}

/**
 * Add the row of a step that was just made. Rows of steps that it replaces go: the job went back to a checkpoint.
 * @param {History} history
 * @param {Record<string, number | null | undefined>} row
 * @param {string | null} waitedFor
 */
export function appendStep(history, row, waitedFor) {
    const step = row.step ?? 0;
    while (history.steps.length && history.steps[history.steps.length - 1] >= step) {
        for (const each of columnsOf(history)) each.pop();
        history.waitedFor.pop();
    }
    const before = history.steps.length;
    for (const name of Object.keys(row)) {
        if (!history.figures.has(name)) {
            history.figures.set(name, { mean: Array(before).fill(NaN), low: null, high: null });
        }
    }
    for (const [name, figures] of history.figures) {
        const value = row[name] ?? NaN;
        figures.mean.push(value);
        figures.low?.push(value);
        figures.high?.push(value);
    }
    history.waitedFor.push(waitedFor);
}

/** @param {History} history */
function columnsOf(history) {
    return [...history.figures.values()].flatMap((each) =>
        [each.mean, each.low, each.high].filter((one) => one !== null),
    );
}

/**
 * Return the places of a history's rows on an axis; tokens need to know how many a step has.
 * @param {History} history
 * @param {Axis} axis
 * @param {number | null} tokensPerStep
 */
export function placesOn(history, axis, tokensPerStep) {
    if (axis === "tokens" && tokensPerStep) return history.steps.map((step) => step * tokensPerStep);
    const times = history.figures.get("unix_seconds")?.mean;
    if (axis === "time" && times) return ascending(times);
    return history.steps;
}

/**
 * Return numbers of which none is below the one before it, as clocks may be set back.
 * @param {number[]} numbers
 */
function ascending(numbers) {
    let highest = -Infinity;
    return numbers.map((each) => {
        if (each > highest) highest = each;
        return Number.isFinite(highest) ? highest : 0;
    });
}

/**
 * Return values to draw: what is not finite is a gap, and on a logarithmic scale what is not positive, too.
 * @param {ArrayLike<number | null>} numbers
 */
export function drawable(numbers, logarithmic = false) {
    return Array.from(numbers, (each) =>
        each === null || !Number.isFinite(each) || (logarithmic && each <= 0) ? null : each,
    );
}

/**
 * Return how many rows have no finite number, and how many of the finite ones a logarithmic scale can't show.
 * @param {number[]} numbers
 */
export function countGaps(numbers) {
    let missing = 0;
    let nonPositive = 0;
    for (const each of numbers) {
        if (!Number.isFinite(each)) missing += 1;
        else if (each <= 0) nonPositive += 1;
    }
    return { missing, nonPositive };
}

/**
 * Return rows with one of gaps between two rows that lie further apart than a row's steps: those steps were lost.
 * @param {number[]} steps
 * @param {number[]} places
 * @param {Values[]} columns
 * @param {number} stepsPerRow
 * @returns {{ steps: number[], places: number[], columns: Values[] }}
 */
export function breakAtLostSteps(steps, places, columns, stepsPerRow) {
    const far = 1.5 * stepsPerRow;
    /** @type {{ steps: number[], places: number[], columns: Values[] }} */
    const broken = { steps: [], places: [], columns: columns.map(() => []) };
    steps.forEach((step, row) => {
        if (row > 0 && step - steps[row - 1] > far) {
            broken.steps.push((step + steps[row - 1]) / 2);
            broken.places.push((places[row] + places[row - 1]) / 2);
            for (const column of broken.columns) column.push(null);
        }
        broken.steps.push(step);
        broken.places.push(places[row]);
        broken.columns.forEach((column, place) => column.push(columns[place][row]));
    });
    return broken;
}

/**
 * Return an exponential moving average without the bias of its start; gaps stay gaps.
 * @param {Values} values
 * @param {number} weight Weight of the past, from 0 for none to below 1.
 * @returns {Values}
 */
export function smooth(values, weight) {
    if (weight <= 0) return values;
    let average = 0;
    let mass = 0;
    return values.map((each) => {
        if (each === null) return null;
        average = weight * average + (1 - weight) * each;
        mass = weight * mass + (1 - weight);
        return average / mass;
    });
}

/**
 * Return columns of which each is the sum of those up to it, for areas that stand on each other.
 * @param {Values[]} columns
 * @returns {Values[]}
 */
export function stack(columns) {
    /** @type {Values} */
    let below = [];
    return columns.map((column) => {
        below = column.map((each, row) => {
            const under = below.length ? below[row] : 0;
            return each === null || under === null ? null : each + under;
        });
        return below;
    });
}

/**
 * Return curves with places of their own on common places: undefined where a curve has no row, which is no gap.
 * @param {{ places: number[], values: Values }[]} curves
 * @returns {{ places: number[], columns: (number | null | undefined)[][] }}
 */
export function join(curves) {
    const places = [...new Set(curves.flatMap((each) => each.places))].sort((one, other) => one - other);
    const rowOf = new Map(places.map((place, row) => [place, row]));
    const columns = curves.map((curve) => {
        /** @type {(number | null | undefined)[]} */
        const column = Array(places.length).fill(undefined);
        curve.places.forEach((place, row) => {
            column[rowOf.get(place) ?? 0] = curve.values[row];
        });
        return column;
    });
    return { places, columns };
}

/**
 * Return how often each worker was the one that a row's steps waited for, most often first.
 * @param {(string | null)[]} waitedFor
 */
export function countWaitedFor(waitedFor) {
    /** @type {Map<string, number>} */
    const counts = new Map();
    let known = 0;
    for (const name of waitedFor) {
        if (!name) continue;
        known += 1;
        counts.set(name, (counts.get(name) ?? 0) + 1);
    }
    return [...counts]
        .sort((one, other) => other[1] - one[1])
        .map(([name, count]) => ({ name, count, share: count / known }));
}

/**
 * Return which rows a table shows of so many: all, or some at even distances with the last one.
 * @param {number} rows
 */
export function rowsOfTable(rows, most = MOST_ROWS_OF_TABLE) {
    const every = Math.max(1, Math.ceil(rows / most));
    const chosen = [];
    for (let row = (rows - 1) % every; row < rows; row += every) if (row >= 0) chosen.push(row);
    return { every, chosen };
}

/**
 * Return the row whose step is nearest.
 * @param {number[]} steps In ascending order.
 * @param {number} step
 */
export function nearestRow(steps, step) {
    let [low, high] = [0, steps.length - 1];
    while (low < high) {
        const middle = (low + high) >> 1;
        if (steps[middle] < step) low = middle + 1;
        else high = middle;
    }
    return low > 0 && step - steps[low - 1] < steps[low] - step ? low - 1 : low;
}
