/** What a worker does now and how fast it is, for people. */

import { duration, number } from "./text.js";
import { ACTIVITIES, BUSY } from "./words.js";

/** @typedef {import("./api.js").Worker} Worker */

const NEW_SPEED_SECONDS = 10;

/** @param {Worker} worker */
export function workerDoing(worker) {
    const { activity, detail, state } = worker;
    if (!activity) return detail ?? state;
    if (BUSY.includes(activity)) return ACTIVITIES[activity];
    return detail ?? `idle: ${ACTIVITIES[activity] ?? activity}`;
}

/** @param {Worker} worker */
export function workerSpeed(worker) {
    if (!worker.micro_batches_per_second) return "";
    const age = worker.seconds_since_speed ?? 0;
    return `${number(worker.micro_batches_per_second)} micro-batches/s${age >= NEW_SPEED_SECONDS ? `, ${duration(age)} ago` : ""}`;
}

/**
 * Return workers: first those of rows, row by row in the order of their stages.
 * @param {Worker[]} workers
 */
export function inOrderOfStages(workers) {
    return [...workers].sort(
        (one, other) =>
            Number(!one.stages) - Number(!other.stages) ||
            (one.row ?? 0) - (other.row ?? 0) ||
            (one.first_stage ?? 0) - (other.first_stage ?? 0) ||
            (one.name < other.name ? -1 : 1),
    );
}
