import assert from "node:assert/strict";
import { test } from "node:test";

import * as log from "../../../web/page/log_text.js";

const encoder = new TextEncoder();
const FIRST = "2026-11-27T10:00:00.123Z running: demo\n";
const SECOND = "2026-11-27T10:00:01.000Z Step: 1, Loss: 4.0, Time: 1.00 ms\n";

test("a part that begins and ends within lines leaves those out", () => {
    const bytes = encoder.encode(`half a line\n${FIRST}${SECOND}another ha`);
    const cut = log.cutLines(bytes, 1000, false);
    assert.deepEqual(
        cut.lines.map((each) => each.text),
        ["running: demo", "Step: 1, Loss: 4.0, Time: 1.00 ms"],
    );
    assert.equal(cut.lines[0].offset, 1012);
    assert.equal(cut.lines[0].time, "2026-11-27T10:00:00.123Z");
    assert.deepEqual([cut.first, cut.end], [1012, 1012 + FIRST.length + SECOND.length]);
});

test("the beginning and the end of a log are whole", () => {
    assert.deepEqual(
        log.cutLines(encoder.encode(FIRST + "no end"), 0, true).lines.map((each) => each.text),
        ["running: demo", "no end"],
    );
    assert.deepEqual(log.cutLines(new Uint8Array(0), 0, true), { lines: [], first: 0, end: 0 });
});

test("parts that follow each other have each line once", () => {
    const bytes = encoder.encode(FIRST + SECOND + FIRST);
    for (let middle = 1; middle < bytes.length; middle += 1) {
        const later = log.cutLines(bytes.subarray(middle), middle, true);
        const earlier = log.cutLines(bytes.subarray(0, later.first), 0, false);
        assert.equal(earlier.lines.length + later.lines.length, 3);
    }
});

test("the range of an answer says where it is, and the size if it is known", () => {
    assert.deepEqual(log.readContentRange("bytes 10-19/30"), { first: 10, size: 30 });
    assert.deepEqual(log.readContentRange("bytes 10-19/*"), { first: 10, size: null });
    assert.equal(log.readContentRange(null), null);
});

test("of a million lines only those in view are drawn", () => {
    const seen = log.visibleLines(1_000_000, 20 * 500_000, 400, 20);
    assert.ok(seen.last - seen.first <= 61);
    assert.ok(seen.first <= 500_000 && seen.last >= 500_020);
    assert.equal(seen.above + (seen.last - seen.first) * 20 + seen.below, 20 * 1_000_000);
    assert.deepEqual(log.visibleLines(0, 0, 400, 20), { first: 0, last: 0, above: 0, below: 0 });
    const scrolledTooFar = log.visibleLines(5, 10_000, 400, 20);
    assert.equal(scrolledTooFar.last, 5);
});

test("lines that come again are there once, and old ones make room", () => {
    const line = (text) => ({ offset: 0, time: null, text });
    const lines = log.addNewer([line("a"), line("b")], [line("b"), line("c")]);
    assert.deepEqual(
        lines.map((each) => each.text),
        ["a", "b", "c"],
    );
    assert.deepEqual(
        log.addNewer(lines, [line("d")], 2).map((each) => each.text),
        ["c", "d"],
    );
});

test("the newest lines of a log take the place of those of events, unless some lie between", () => {
    const lines = (...texts) => texts.map((text) => ({ offset: 0, time: null, text }));
    const texts = (found) => found?.map((each) => each.text);
    const shown = lines("a", "step 1", "step 2");
    assert.deepEqual(texts(log.endWith(shown, lines("step 1", "time of it", "step 2", "step 3"), 4)), [
        "a",
        "step 1",
        "time of it",
        "step 2",
        "step 3",
    ]);
    assert.deepEqual(texts(log.endWith(shown, lines("time of it", "step 2"), 2)), [
        "a",
        "step 1",
        "time of it",
        "step 2",
    ]);
    assert.equal(log.endWith(shown, lines("step 8", "step 9"), 2), null);
    assert.deepEqual(texts(log.endWith(shown, lines("the whole log"), 2)), ["the whole log"]);
    assert.ok(log.NEWER_LINES < log.TAIL_LINES);
});

test("a search finds lines across pieces, with their offsets, and says how far it looked", () => {
    const bytes = encoder.encode(FIRST + SECOND + "worker a: \x1b[31mLOSS\x1b[0m is nan");
    for (const size of [1, 7, 1000]) {
        const search = new log.LineSearch("Loss");
        for (let first = 0; first < bytes.length; first += size)
            search.push(bytes.subarray(first, first + size));
        search.end();
        assert.equal(search.lookedAtBytes, bytes.length);
        assert.deepEqual(
            search.lines.map((each) => each.offset),
            [FIRST.length, FIRST.length + SECOND.length],
        );
        assert.equal(search.lines[1].text, "worker a: LOSS is nan");
    }
});

test("a search keeps so many lines, and counts the others", () => {
    const search = new log.LineSearch("x");
    search.push(encoder.encode("x\n".repeat(log.MOST_MATCHES + 5)));
    assert.deepEqual([search.lines.length, search.matches], [log.MOST_MATCHES, log.MOST_MATCHES + 5]);
});
