/** Deaths, checkpoints and skipped steps as marks on the axis of curves, from a job's log and events. Pure. */

/** @typedef {"death" | "checkpoint" | "skipped" | "restart"} MarkKind */
/** @typedef {{ kind: MarkKind, step: number, time: string | null, text: string }} Mark */

/** Each kind has a letter, so that colour is not the only sign. @type {Record<MarkKind, { letter: string, word: string }>} */
export const KINDS = {
    death: { letter: "D", word: "death" },
    restart: { letter: "R", word: "went back or on" },
    skipped: { letter: "S", word: "skipped step" },
    checkpoint: { letter: "C", word: "checkpoint" },
};
export const MOST_MARKS = 2000;

/** @type {[RegExp, MarkKind][]} */
const TEXTS = [
    [/^(worker|optimizer) .* is gone: /, "death"],
    [/^worker .* failed in step \d+/, "death"],
    [/^(the optimizer went back to|goes on from its checkpoint of) step \d+/, "restart"],
    [/\(skipped: /, "skipped"],
    [/^checkpoint of step \d+/, "checkpoint"],
];

const NAMES_ITS_STEP = /^(Step:? \d|checkpoint of step|the optimizer went back|goes on from)/;

/**
 * Return the mark of a line of the log; null if it has none.
 * @param {string} text
 * @param {number} step Step at that time, for lines that do not name one.
 * @param {string | null} time
 * @returns {Mark | null}
 */
export function markOf(text, step, time) {
    for (const [pattern, kind] of TEXTS) {
        if (pattern.test(text)) return { kind, step: stepIn(text) ?? step, time, text };
    }
    return null;
}

/**
 * Return the step that a line names.
 * @param {string} text
 */
export function stepIn(text) {
    const found = /\b[Ss]tep:? (\d+)/.exec(text);
    return found ? Number(found[1]) : null;
}

/**
 * Return the marks of a log's lines. A line without a step is of the newest step that a line before it names.
 * @param {{ time: string | null, text: string }[]} lines
 * @returns {Mark[]}
 */
export function marksOfLog(lines) {
    const marks = [];
    let step = 0;
    for (const line of lines) {
        if (NAMES_ITS_STEP.test(line.text)) step = stepIn(line.text) ?? step;
        const mark = markOf(line.text, step, line.time);
        if (mark) marks.push(mark);
    }
    return marks.slice(-MOST_MARKS);
}

/**
 * Return marks without those that are there twice, in the order of their steps.
 * @param {Mark[]} marks
 */
export function mergeMarks(marks) {
    const byKey = new Map(
        marks.map((each) => [
            `${each.kind} ${each.step} ${each.kind === "checkpoint" ? "" : each.text}`,
            each,
        ]),
    );
    return [...byKey.values()].sort((one, other) => one.step - other.step).slice(-MOST_MARKS);
}
