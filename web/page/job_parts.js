/** Parts of a job's view that say what is, without asking anything. */

import { facts, h, table, time } from "./dom.js";
import { countWaitedFor } from "./history.js";
import { KINDS } from "./marks.js";
import { stageText } from "./mesh.js";
import { takesList } from "./takes.js";
import { ago, bytes, counted, duration, loss, number, settingText, share, shortId, whole } from "./text.js";
import { jobReason, jobStart, workersWanted } from "./words.js";
import { workerDoing, workerSpeed } from "./workers.js";

/** @typedef {import("./api.js").Job} Job */
/** @typedef {import("./api.js").Cluster} Cluster */
/** @typedef {import("./api.js").JobConfig} JobConfig */
/** @typedef {import("./marks.js").Mark} Mark */

const MOST_MARKS_SHOWN = 500;

/** @param {Job} job */
export function jobFacts(job) {
    const [from, step] = (job.started_from ?? "").split(":");
    return facts([
        ["id", job.job],
        ["owner", job.owner],
        [job.waiting ? "waits for" : "reason", jobReason(job)],
        ["queue", job.position ? `place ${job.position}, starts ${jobStart(job)}` : ""],
        ["priority", job.priority || ""],
        ["time left", job.seconds_left === null ? "" : duration(job.seconds_left)],
        ["loss", job.loss === null ? "" : loss(job.loss)],
        [
            "validation loss",
            job.validation_loss === null
                ? ""
                : `${loss(job.validation_loss)} at step ${whole(job.validation_step)}`,
        ],
        [
            "speed",
            [
                job.tokens_per_second ? `${number(job.tokens_per_second)} tokens/s` : "",
                job.mfu === null ? "" : `MFU ${share(job.mfu)}`,
            ]
                .filter(Boolean)
                .join(", "),
        ],
        ["workers", `${job.workers || 0}${workersWanted(job) ? ` of ${workersWanted(job)} wanted` : ""}`],
        ["efficiency", job.efficiency === null ? "" : share(job.efficiency)],
        ["parameters", job.parameters ? whole(job.parameters) : ""],
        ["checkpoint", job.checkpoint_step === null ? "" : `step ${whole(job.checkpoint_step)}`],
        [
            "started from",
            from &&
                h(
                    "span",
                    null,
                    h("a", { href: `#/jobs/${encodeURIComponent(from)}` }, shortId(from)),
                    ` step ${step}`,
                ),
        ],
        ["went back", job.generation > 1 ? counted(job.generation - 1, "time") : ""],
        ["skipped", job.skipped],
        ...Object.entries(job.excluded ?? {}).map(
            ([worker, reason]) => /** @type {[string, string]} */ (["faulty", `worker ${worker}: ${reason}`]),
        ),
        ["submitted", job.submitted && time(job.submitted)],
        ["started", job.started && time(job.started)],
        ["ended", job.ended && time(job.ended)],
    ]);
}

/**
 * Return which workers the steps of the curves waited for; null if none is known.
 * @param {(string | null)[]} waitedFor
 */
export function stragglers(waitedFor) {
    const counts = countWaitedFor(waitedFor).slice(0, 10);
    if (!counts.length) return null;
    return h(
        "div",
        null,
        h("h3", null, "Steps waited for"),
        h(
            "ul",
            { class: "counts" },
            counts.map((each) =>
                h(
                    "li",
                    null,
                    h("span", null, each.name),
                    h("meter", {
                        min: 0,
                        max: 1,
                        value: each.share,
                        "aria-label": `share of steps that waited for ${each.name}`,
                    }),
                    h("span", { class: "number" }, share(each.share)),
                ),
            ),
        ),
    );
}

/**
 * Return the workers that serve a job, with their stages, and what the job waits for from whom.
 * @param {Cluster} cluster
 * @param {string} job
 */
export function workersOfJob(cluster, job) {
    const own = cluster.workers.filter((each) => each.job === job);
    const waits = cluster.waits.filter((each) => each.job === job).slice(0, 20);
    if (!own.length) return h("p", null, "No worker serves this job now.");
    const staged = own.some((each) => each.stages);
    const slowest = cluster.slowest_stages?.worker;
    const columns = [
        "worker",
        "does now",
        ...(staged ? ["stages"] : []),
        "weights of step",
        { text: "speed", number: true },
        "last message",
    ];
    const rows = [...own]
        .sort(
            (one, other) =>
                (one.row ?? 0) - (other.row ?? 0) || (one.first_stage ?? 0) - (other.first_stage ?? 0),
        )
        .map((each) => [
            each.name,
            workerDoing(each),
            ...(staged
                ? [
                      each.stages
                          ? `${stageText(each)} of row ${each.row}${each.name === slowest ? ", the slowest" : ""}`
                          : "none",
                  ]
                : []),
            whole(each.step),
            workerSpeed(each),
            ago(each.seconds_since_heard),
        ]);
    return h(
        "div",
        null,
        table("Workers of this job", columns, rows),
        waits.length > 0 &&
            h(
                "ul",
                null,
                waits.map((each) =>
                    h(
                        "li",
                        null,
                        `step ${each.step} waits ${duration(each.seconds)} for ${each.role} ${each.peer === each.role ? "" : each.peer}: ${each.what}`,
                    ),
                ),
            ),
    );
}

/** @param {Mark[]} marks */
export function marksTable(marks) {
    const shown = marks.slice(-MOST_MARKS_SHOWN).reverse();
    const legend = Object.values(KINDS)
        .map((each) => `${each.letter}: ${each.word}`)
        .join(", ");
    return h(
        "details",
        { class: "events" },
        h("summary", null, `Marks on the axis (${legend})`),
        shown.length
            ? table(
                  "Deaths, checkpoints and skipped steps, newest first",
                  [{ text: "step", number: true }, "kind", "time", "text"],
                  shown.map((each) => [whole(each.step), KINDS[each.kind].word, time(each.time), each.text]),
              )
            : h("p", null, "None, as far as the newest lines of the log and the newest checkpoints say."),
    );
}

/** @param {JobConfig} config */
export function configSection(config) {
    const { takes, settings } = config;
    const bubble =
        takes && typeof takes.bubble === "number"
            ? h(
                  "p",
                  null,
                  `A pipeline of ${takes.stages} stages by ${takes.schedule}: each stage is idle for ${share(takes.bubble)} of a step, its bubble.`,
              )
            : null;
    return h(
        "section",
        { "aria-labelledby": "settings-title" },
        h("h2", { id: "settings-title" }, "Settings"),
        bubble,
        h(
            "details",
            null,
            h("summary", null, "What it takes"),
            takes ? takesList(takes) : h("p", null, "Unknown."),
        ),
        h(
            "details",
            null,
            h("summary", null, `All ${counted(Object.keys(settings).length, "setting")}`),
            table(
                "Settings of the job",
                ["key", "value"],
                Object.entries(settings).map(([key, value]) => [key, settingText(value)]),
            ),
        ),
        h(
            "details",
            null,
            h("summary", null, `Config, ${bytes(config.config.length)}`),
            h("pre", { class: "config", tabindex: "0" }, config.config),
        ),
    );
}
