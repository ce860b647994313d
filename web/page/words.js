/** The product's words for what the API's fields say, as `tiermesh status` and `tiermesh queue` have them. */

import { counted, duration, share, shortId } from "./text.js";

/** @typedef {import("./api.js").Job} Job */

/** What a worker does with its time, or why it is idle. @type {Record<string, string>} */
export const ACTIVITIES = {
    computing: "computing",
    wire: "waiting for the wire",
    update: "waiting for the update",
    others: "waiting for other workers",
    few_micro_batches: "a step has fewer micro-batches than workers",
    waits_for_workers: "the job waits for more workers",
    waits_for_optimizer: "the job waits for the optimizer",
    stalled: "stalled",
    no_job: "no job runs",
    building: "building the job",
    waits_for_data: "waits for the job's data",
    waits_for_claim: "waits until the job decides between claims",
    spare: "no row of workers needs it",
    unfit: "can't open its mesh, or lacks the job's data",
    refused: "refused by the job",
};
export const BUSY = ["computing", "wire", "update", "others"];
export const LIVE_STATES = ["running", "queued", "paused"];
export const ENDED_STATES = ["succeeded", "failed", "cancelled"];

/** @type {Record<string, string>} */
const PHASES = {
    initialise: "making weights",
    train: "training",
    evaluate: "evaluating",
    checkpoint: "saving",
};

/** A sign beside each state, so that colour is never the only one. @type {Record<string, string>} */
export const SIGNS = {
    running: "▶",
    waiting: "◌",
    pausing: "‖",
    paused: "‖",
    queued: "…",
    succeeded: "✓",
    failed: "✗",
    cancelled: "⊘",
    computing: "▶",
    ready: "●",
    connected: "●",
    building: "◔",
    spare: "○",
    stalled: "!",
    unfit: "✗",
    refused: "✗",
};

/**
 * Return a job's state for people: a running one that lacks workers or the optimizer is waiting.
 * @param {Job} job
 */
export function jobState(job) {
    if (job.pausing) return "pausing";
    return job.waiting && !job.position ? "waiting" : job.state;
}

/**
 * Return what a running job does, as in "training" or "evaluating, 12 of 40 batches"; empty if it does not run.
 * @param {Job} job
 */
export function jobPhase(job) {
    if (job.evaluation_batches) {
        return `evaluating, ${job.evaluated_batches} of ${counted(job.evaluation_batches, "batch", "batches")}`;
    }
    return job.phase ? (PHASES[job.phase] ?? job.phase) : "";
}

/**
 * Return what a job waits for, or why it is as it is.
 * @param {Job} job
 */
export function jobReason(job) {
    return (job.waiting ?? "").replace(/^waits for /, "") || job.detail || job.skipped || "";
}

/**
 * Return when a queued job presumably starts.
 * @param {Job} job
 */
export function jobStart(job) {
    if (!job.position) return "";
    return job.estimated_start_seconds === null
        ? "start unknown"
        : `in ${duration(job.estimated_start_seconds)}`;
}

/**
 * Return how many workers a job wants, as in "2–8".
 * @param {Job} job
 */
export function workersWanted(job) {
    const [least, most] = [job.min_workers ?? 0, job.max_workers ?? 0];
    return most <= least ? String(least || "") : `${least}–${most}`;
}

/**
 * Return a job's name and the end of its id.
 * @param {Job} job
 */
export function jobTitle(job) {
    return `${job.name || "job"} ${shortId(job.job)}`;
}

/**
 * Return how workers' time was spent, largest part first within busy and idle, each with its share.
 * @param {Record<string, number>} workerSeconds
 * @returns {{ name: string, text: string, share: number, idle: boolean }[]}
 */
export function timeShares(workerSeconds) {
    const total = Object.values(workerSeconds).reduce((sum, each) => sum + each, 0);
    if (total <= 0) return [];
    const entries = Object.entries(workerSeconds).map(([name, seconds]) => ({
        name,
        text: ACTIVITIES[name] ?? name,
        share: seconds / total,
        idle: !BUSY.includes(name),
    }));
    const place = (/** @type {string} */ name) => BUSY.indexOf(name);
    return entries
        .filter((each) => each.share >= 0.001)
        .sort(
            (one, other) =>
                Number(one.idle) - Number(other.idle) ||
                (one.idle ? other.share - one.share : place(one.name) - place(other.name)),
        );
}

/**
 * Return what time was spent on in a sentence, as in "71 % computing, 9 % idle (no job runs)".
 * @param {Record<string, number>} workerSeconds
 */
export function describeTimes(workerSeconds) {
    return timeShares(workerSeconds)
        .map((each) => `${share(each.share)} ${each.idle ? `idle (${each.text})` : each.text}`)
        .join(", ");
}

/**
 * Return which actions a job's state allows.
 * @param {Job} job
 */
export function allowedActions(job) {
    const live = LIVE_STATES.includes(job.state);
    return {
        cancel: live,
        pause: (job.state === "queued" || job.state === "running") && !job.pausing,
        resume: job.state === "paused" || job.pausing,
        priority: live,
        continue: !live && job.checkpoint_step !== null,
    };
}
