import assert from "node:assert/strict";
import { test } from "node:test";

import { versionOf } from "../../../web/page/cluster_view.js";
import { inOrderOfStarts } from "../../../web/page/jobs_view.js";
import { markOf, marksOfLog, mergeMarks } from "../../../web/page/marks.js";
import { axesOf, placeName, stageText } from "../../../web/page/mesh.js";
import { differingSettings, lineOfSetting } from "../../../web/page/settings.js";
import { EventParser } from "../../../web/page/stream.js";
import {
    allowedActions,
    describeTimes,
    jobReason,
    jobStart,
    jobState,
    workersWanted,
} from "../../../web/page/words.js";

const JOB = {
    job: "1127-100000-aaaaaaaa",
    name: "demo",
    state: "running",
    pausing: false,
    waiting: null,
    position: null,
    detail: null,
    skipped: null,
    estimated_start_seconds: null,
    min_workers: 2,
    max_workers: 8,
    checkpoint_step: null,
};

test("a version that is not the aggregator's is marked in words", () => {
    const found = { version: "0.3.0" };
    assert.equal(versionOf("0.3.0", found), "0.3.0");
    assert.match(versionOf("0.2.0", found) ?? "", /^0\.2\.0, another one than the aggregator's 0\.3\.0$/);
    assert.equal(versionOf(null, found), null);
    assert.equal(versionOf("0.2.0", { version: null }), "0.2.0");
});

test("a job's state, reason and start are in the product's words", () => {
    assert.equal(jobState(JOB), "running");
    assert.equal(jobState({ ...JOB, waiting: "waits for 2 workers" }), "waiting");
    assert.equal(jobState({ ...JOB, pausing: true }), "pausing");
    assert.equal(jobState({ ...JOB, state: "queued", position: 1, waiting: "waits for room" }), "queued");
    assert.equal(jobReason({ ...JOB, waiting: "waits for 2 workers" }), "2 workers");
    assert.equal(jobStart({ ...JOB, position: 3 }), "start unknown");
    assert.equal(jobStart({ ...JOB, position: 3, estimated_start_seconds: 720 }), "in 12 min");
    assert.equal(workersWanted(JOB), "2–8");
});

test("actions are those that a state allows", () => {
    assert.deepEqual(allowedActions(JOB), {
        cancel: true,
        pause: true,
        resume: false,
        priority: true,
        continue: false,
    });
    assert.deepEqual(allowedActions({ ...JOB, state: "paused" }), {
        cancel: true,
        pause: false,
        resume: true,
        priority: true,
        continue: false,
    });
    const ended = allowedActions({ ...JOB, state: "failed", checkpoint_step: 5 });
    assert.deepEqual(ended, { cancel: false, pause: false, resume: false, priority: false, continue: true });
});

test("the queue is in the order of starts", () => {
    const job = (name, state, position) => ({ ...JOB, job: name, state, position });
    const jobs = [
        job("paused", "paused", null),
        job("second", "queued", 2),
        job("runs", "running", null),
        job("first", "queued", 1),
    ];
    assert.deepEqual(
        inOrderOfStarts(jobs).map((each) => each.job),
        ["runs", "first", "second", "paused"],
    );
});

test("time is told by its shares, idle time with its reason", () => {
    assert.equal(
        describeTimes({ computing: 71, no_job: 9, wire: 20 }),
        "71 % computing, 20 % waiting for the wire, 9 % idle (no job runs)",
    );
    assert.equal(describeTimes({}), "");
});

test("settings that differ are found whatever the order of keys", () => {
    const one = { seed: 1, lr: 0.1, wire: { a: 1, b: 2 } };
    const other = { wire: { b: 2, a: 1 }, lr: 0.2, seed: 1, extra: null };
    assert.deepEqual(differingSettings([one, other]), [
        { key: "extra", values: [undefined, null] },
        { key: "lr", values: [0.1, 0.2] },
    ]);
    assert.deepEqual(differingSettings([one]), []);
});

test("the line of a setting is found, or that of its section", () => {
    const yaml = "# a job\ntraining_config:\n  seed: 1\n  optimizer:\n    lr: 0.1\ndevice_config:\n  lr: 3\n";
    assert.equal(lineOfSetting(yaml, "training_config.optimizer.lr"), 5);
    assert.equal(lineOfSetting(yaml, "device_config.lr"), 7);
    assert.equal(lineOfSetting(yaml, "training_config.max_steps"), 2);
    assert.equal(lineOfSetting(yaml, "eval_config.top_k"), null);
});

test("deaths, returns to checkpoints and skipped steps are marks at their steps", () => {
    const line = (text) => ({ time: "2026-11-27T10:00:00.000Z", text });
    const marks = marksOfLog([
        line("Step: 4, Loss: 2.0, Time: 1.00 ms"),
        line("worker w-2 is gone: its connection ended"),
        line("Step 5: Loss = nan (skipped: loss)"),
        line("worker w-1: prints that step 99 is gone"),
        line("the optimizer went back to step 2, generation 2"),
        line("checkpoint of step 6: /checkpoints/step-00000006"),
    ]);
    assert.deepEqual(
        marks.map((each) => [each.kind, each.step]),
        [
            ["death", 4],
            ["skipped", 5],
            ["restart", 2],
            ["checkpoint", 6],
        ],
    );
    assert.equal(markOf("worker w is ready", 1, null), null);
});

test("a mark that is known twice is there once", () => {
    const mark = (text) => ({ kind: "checkpoint", step: 6, time: null, text });
    assert.equal(mergeMarks([mark("a"), mark("b")]).length, 1);
});

test("events are cut from a stream wherever it is cut, and comments are none", () => {
    const text =
        ': heartbeat\n\nid: 1.1\nevent: step\ndata: {"text": "a: b"}\n\nevent: away\ndata: {"since": "x"}\n\n';
    for (const size of [1, 5, 1000]) {
        const parser = new EventParser();
        const events = [];
        for (let first = 0; first < text.length; first += size)
            events.push(...parser.push(text.slice(first, first + size)));
        assert.deepEqual(events, [
            { id: "1.1", kind: "step", data: { text: "a: b" } },
            { id: null, kind: "away", data: { since: "x" } },
        ]);
    }
});

test("a mesh's dimensions have the job's axes, those of size 1 none", () => {
    assert.deepEqual(axesOf([2, 4], { dp: 2, tp: 4 }), ["dp", "tp"]);
    assert.deepEqual(axesOf([1, 8], { tp: 8 }), [null, "tp"]);
    assert.deepEqual(axesOf([2, 4], null), [null, null]);
    assert.equal(placeName("tp", "column", 3), "tp 3");
    assert.equal(stageText({ first_stage: 1, stages: 2 }), "stages 1 to 2");
    assert.equal(stageText({ first_stage: null, stages: 0 }), "");
});
