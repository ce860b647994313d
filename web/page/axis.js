/** Places on the axis of a curve, for people. Pure, without a document. */

import { localTime, number, utcTime, whole } from "./text.js";

/** @typedef {import("./history.js").Axis | "elapsed"} Kind What places are: steps, tokens, Unix times, or seconds. */

/** Distances between two steps on an axis. */
export const WHOLE_STEPS = Array.from(
    { length: 40 },
    (_, place) => [1, 2, 5][place % 3] * 10 ** Math.floor(place / 3),
);

/**
 * Return a place on an axis, for people.
 * @param {number} place
 * @param {Kind} axis
 */
export function placeText(place, axis) {
    if (axis === "time") return `${localTime(new Date(1000 * place))} (${utcTime(new Date(1000 * place))})`;
    if (axis === "elapsed") return elapsed(place);
    return axis === "tokens" ? `${number(place)} tokens` : `step ${whole(place)}`;
}

/**
 * Return the text of a tick, as short as its neighbours allow.
 * @param {number} place
 * @param {Kind} axis
 * @param {number[]} places All ticks.
 */
export function axisText(place, axis, places) {
    if (axis === "elapsed") return elapsed(place);
    if (axis !== "time")
        return number(place, 6)
            .replace(/,000,000,000$/, " G")
            .replace(/,000,000$/, " M");
    const text = localTime(new Date(1000 * place));
    const apart = places.length > 1 ? places[1] - places[0] : 0;
    if (apart >= 86400) return text.split(" ")[0];
    return apart >= 60 ? text.replace(/:\d\d$/, "") : text;
}

/** @param {number} seconds */
function elapsed(seconds) {
    const minutes = Math.floor(seconds / 60);
    return `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;
}
