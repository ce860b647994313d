import assert from "node:assert/strict";
import { test } from "node:test";

import { axisText, placeText, WHOLE_STEPS } from "../../../web/page/axis.js";
import * as history from "../../../web/page/history.js";

/** Return numbers as the API sends them. */
function base64(numbers) {
    return Buffer.from(new Float64Array(numbers).buffer).toString("base64");
}

function column(name, kind, numbers) {
    return { name, kind, base64: base64(numbers) };
}

test("columns are read with their summaries and texts", () => {
    const found = history.readHistory({
        steps_per_row: 64,
        next_from: null,
        columns: [
            column("step", "value", [64, 128]),
            column("loss", "min", [1, 2]),
            column("loss", "max", [3, NaN]),
            column("loss", "mean", [2, NaN]),
            { name: "waited_for", kind: "text", values: ["w", null] },
        ],
    });
    assert.deepEqual(found.steps, [64, 128]);
    assert.deepEqual(found.figures.get("loss"), { low: [1, 2], high: [3, NaN], mean: [2, NaN] });
    assert.deepEqual(found.waitedFor, ["w", null]);
});

test("a step that comes adds a row, and one that is redone replaces those from it on", () => {
    const found = history.emptyHistory();
    history.appendStep(found, { step: 1, loss: 4 }, "a");
    history.appendStep(found, { step: 2, loss: 3 }, "b");
    history.appendStep(found, { step: 3, loss: 2, mfu: 0.5 }, "c");
    history.appendStep(found, { step: 2, loss: 2.5 }, "d");
    assert.deepEqual(found.steps, [1, 2]);
    assert.deepEqual(found.figures.get("loss").mean, [4, 2.5]);
    assert.deepEqual(found.figures.get("mfu").mean, [NaN, NaN]);
    assert.deepEqual(found.waitedFor, ["a", "d"]);
});

test("NaN, infinity and what a logarithm lacks are gaps, and are counted", () => {
    const numbers = [1, NaN, Infinity, 0, -1];
    assert.deepEqual(history.drawable(numbers), [1, null, null, 0, -1]);
    assert.deepEqual(history.drawable(numbers, true), [1, null, null, null, null]);
    assert.deepEqual(history.countGaps(numbers), { missing: 2, nonPositive: 2 });
});

test("lost steps break a curve", () => {
    const broken = history.breakAtLostSteps([1, 2, 5, 6], [10, 20, 50, 60], [[1, 2, 5, 6]], 1);
    assert.deepEqual(broken.places, [10, 20, 35, 50, 60]);
    assert.deepEqual(broken.columns, [[1, 2, null, 5, 6]]);
    assert.equal(history.breakAtLostSteps([64, 128, 192], [0, 1, 2], [[1, 2, 3]], 64).steps.length, 3);
});

test("smoothing begins without a bias, keeps gaps, and does nothing at 0", () => {
    assert.deepEqual(
        history.smooth([2, null, 2], 0.9).map((each) => each && Math.round(each * 1e9) / 1e9),
        [2, null, 2],
    );
    assert.deepEqual(history.smooth([1, 5], 0), [1, 5]);
    const [first, second] = history.smooth([0, 1], 0.5);
    assert.equal(first, 0);
    assert.ok(Math.abs(second - 2 / 3) < 1e-12);
});

test("parts of a step stand on each other, with gaps where one is missing", () => {
    assert.deepEqual(
        history.stack([
            [1, 2],
            [3, null],
            [5, 6],
        ]),
        [
            [1, 2],
            [4, null],
            [9, null],
        ],
    );
});

test("axes are steps, tokens or times that never go back", () => {
    const found = history.emptyHistory();
    for (const [step, unix_seconds] of [
        [1, 100],
        [2, 99],
        [3, 120],
    ])
        history.appendStep(found, { step, unix_seconds }, null);
    assert.deepEqual(history.placesOn(found, "steps", null), [1, 2, 3]);
    assert.deepEqual(history.placesOn(found, "tokens", 1000), [1000, 2000, 3000]);
    assert.deepEqual(history.placesOn(found, "tokens", null), [1, 2, 3]);
    assert.deepEqual(history.placesOn(found, "time", null), [100, 100, 120]);
});

test("curves with places of their own are joined without gaps that are none", () => {
    const joined = history.join([
        { places: [1, 3], values: [10, null] },
        { places: [2, 3], values: [20, 30] },
    ]);
    assert.deepEqual(joined.places, [1, 2, 3]);
    assert.deepEqual(joined.columns, [
        [10, undefined, null],
        [undefined, 20, 30],
    ]);
});

test("stragglers are counted among the rows that know one", () => {
    assert.deepEqual(history.countWaitedFor(["a", "b", null, "a", "a"]), [
        { name: "a", count: 3, share: 0.75 },
        { name: "b", count: 1, share: 0.25 },
    ]);
});

test("a table behind a chart is bounded, and ends with the last row", () => {
    assert.deepEqual(history.rowsOfTable(3), { every: 1, chosen: [0, 1, 2] });
    const { every, chosen } = history.rowsOfTable(2000, 500);
    assert.equal(every, 4);
    assert.equal(chosen.length, 500);
    assert.equal(chosen.at(-1), 1999);
    assert.deepEqual(history.rowsOfTable(0).chosen, []);
});

test("the nearest row is found", () => {
    assert.deepEqual(
        [0, 14, 16, 99].map((step) => history.nearestRow([10, 20, 30], step)),
        [0, 0, 1, 2],
    );
});

test("ticks are as short as their neighbours allow", () => {
    assert.deepEqual(WHOLE_STEPS.slice(0, 5), [1, 2, 5, 10, 20]);
    assert.equal(axisText(2_000_000, "tokens", []), "2 M");
    assert.equal(axisText(3725, "elapsed", []), "1:02:05");
    const noon = new Date(2026, 10, 20, 12).getTime() / 1000;
    assert.equal(axisText(noon, "time", [noon, noon + 86400]), "2026-11-20");
    assert.equal(axisText(noon, "time", [noon, noon + 600]), "2026-11-20 12:00");
    assert.equal(placeText(7, "steps"), "step 7");
});
