import assert from "node:assert/strict";
import { test } from "node:test";

import * as text from "../../../web/page/text.js";

test("numbers have the digits that a reader needs", () => {
    const cases = [
        [0, "0"],
        [1234567, "1,230,000"],
        [153100, "153,000"],
        [0.00123456, "0.00123"],
        [12.345, "12.3"],
        [5e-6, "5e-6"],
        [-1500, "-1,500"],
    ];
    for (const [value, expected] of cases) assert.equal(text.number(value), expected);
    assert.equal(text.whole(1000000), "1,000,000");
    assert.equal(text.loss(2.34567), "2.3457");
});

test("what is unknown or not finite is said, not drawn as a number", () => {
    for (const spell of [text.number, text.whole, text.loss, text.share, text.bytes, text.duration]) {
        assert.equal(spell(null), text.NOTHING);
        assert.equal(spell(undefined), text.NOTHING);
    }
    assert.equal(text.loss(NaN), "NaN");
    assert.equal(text.number(Infinity), "∞");
    assert.equal(text.number(-Infinity), "-∞");
});

test("durations are spelt in their two largest units", () => {
    const cases = [
        [0.044, "0.044 s"],
        [2.5, "2.5 s"],
        [45, "45 s"],
        [75, "1 min 15 s"],
        [3600, "1 h"],
        [4320, "1 h 12 min"],
        [273600, "3 d 4 h"],
        [59.7, "1 min"],
    ];
    for (const [seconds, expected] of cases) assert.equal(text.duration(seconds), expected);
});

test("sizes and shares are spelt as the command does", () => {
    assert.deepEqual([0, 999, 1000, 999950, 4.5e9].map(text.bytes), [
        "0 bytes",
        "999 bytes",
        "1.0 kB",
        "1.0 MB",
        "4.5 GB",
    ]);
    assert.deepEqual([0, 0.004, 0.71, 1].map(text.share), ["0 %", "0.4 %", "71 %", "100 %"]);
    assert.deepEqual([text.counted(1, "job"), text.counted(2, "job")], ["1 job", "2 jobs"]);
});

test("escapes of terminals, and characters that reorder or hide text, are stripped", () => {
    assert.equal(text.plain("\x1b[31mred\x1b[0m"), "red");
    assert.equal(text.plain("\x1b]8;;http://evil\x07link\x1b]8;;\x07"), "link");
    assert.equal(text.plain("\\x1b[31mred\\x1b[0m"), "red", "escaped by the daemon that wrote the line");
    assert.equal(text.plain("a\u202eb\u2066c\u200bd\x00e\x9bf"), "abcdef");
    assert.equal(text.plain("\ud800x"), "\ufffdx");
    assert.equal(text.plain("😀 <b>é\tü\n"), "😀 <b>é\tü\n");
});

test("times are local, and of today without a date", () => {
    const moment = new Date(2026, 10, 27, 9, 5, 3);
    assert.equal(text.localTime(moment, new Date(2026, 10, 27, 20)), "09:05:03");
    assert.equal(text.localTime(moment, new Date(2026, 10, 28)), "2026-11-27 09:05:03");
    assert.equal(text.utcTime(new Date("2026-11-27T10:00:00.123Z")), "2026-11-27 10:00:00 UTC");
});
