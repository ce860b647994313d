/** The cluster: its roles, each worker's mesh with what it does now, links, and where the time of the last hour went. */

import { cluster as getCluster } from "./api.js";
import { timeBar } from "./bars.js";
import { badge, facts, fill, h, patch, reconcile, table } from "./dom.js";
import { meshTable, stageText } from "./mesh.js";
import { repeat } from "./refresh.js";
import { ago, bytes, counted, duration, number, share, shortId } from "./text.js";
import { SIGNS } from "./words.js";
import { inOrderOfStages, workerDoing, workerSpeed } from "./workers.js";

/** @typedef {import("./api.js").Cluster} Cluster */
/** @typedef {import("./api.js").Worker} Worker */
/** @typedef {import("./main.js").Shell} Shell */

const MOST_WORKERS = 500;

/**
 * @param {HTMLElement} root
 * @param {Shell} shell
 */
export function showCluster(root, shell) {
    const roles = h("div", null);
    const hour = h("div", null);
    const waits = h("section", { "aria-labelledby": "waits-title", hidden: true });
    const workers = h("div", { class: "cards" });
    const count = h("span", { class: "count" });
    const links = h("section", { "aria-labelledby": "links-title", hidden: true });
    fill(
        root,
        h("h1", null, "Cluster"),
        h(
            "div",
            { class: "columns" },
            h(
                "section",
                { "aria-labelledby": "roles-title" },
                h("h2", { id: "roles-title" }, "Roles"),
                roles,
            ),
            h(
                "section",
                { "aria-labelledby": "hour-title" },
                h("h2", { id: "hour-title" }, "Efficiency of the last hour"),
                hour,
            ),
        ),
        waits,
        h(
            "section",
            { "aria-labelledby": "workers-title" },
            h("h2", { id: "workers-title" }, "Workers ", count),
            workers,
        ),
        links,
    );

    const repetition = repeat(async (signal) => {
        try {
            draw(await getCluster(signal));
            shell.report(null);
        } catch (error) {
            if (!signal.aborted) shell.report(error);
        }
    });

    /** @param {Cluster} found */
    function draw(found) {
        patch(roles, rolesTable(found));
        patch(
            hour,
            found.efficiency === null
                ? h("p", null, "No worker was connected within the last hour.")
                : [
                      h(
                          "p",
                          { class: "figure" },
                          share(found.efficiency),
                          h("span", null, " of the workers' time was spent on computing"),
                      ),
                      timeBar(found.worker_seconds, "What workers' time was spent on"),
                  ],
        );
        const waiting = found.running_jobs.length ? null : found.waiting; // else each job has its own
        waits.hidden = !found.waits.length && !waiting;
        patch(
            waits,
            h("h2", { id: "waits-title" }, "Waits"),
            waiting && h("p", null, waiting),
            h("ul", null, found.waits.slice(0, 20).map(waitItem)),
        );
        count.textContent = found.workers.length ? `(${found.workers.length})` : "";
        if (!found.workers.length)
            fill(
                workers,
                h(
                    "p",
                    null,
                    "No workers. Start one with ",
                    h("code", null, `tiermesh worker --aggregator HOST:PORT`),
                    ".",
                ),
            );
        else {
            if (!workers.firstElementChild?.matches("article")) fill(workers);
            reconcile(
                workers,
                inOrderOfStages(found.workers).slice(0, MOST_WORKERS),
                (each) => each.name,
                () => h("article", { class: "card" }),
                (card, each) => patch(card, ...workerCard(each, found)),
            );
        }
        links.hidden = !found.links.length;
        if (found.links.length) {
            patch(
                links,
                h("h2", { id: "links-title" }, "Links"),
                table(
                    "Links within the last minutes, and the tensors that their processes moved",
                    [
                        "process",
                        "to",
                        { text: "round trip", number: true },
                        { text: "sent", number: true },
                        { text: "received", number: true },
                    ],
                    found.links
                        .slice(0, MOST_WORKERS)
                        .map((each) => [
                            each.from,
                            each.to,
                            each.round_trip_seconds === null
                                ? null
                                : `${number(1000 * each.round_trip_seconds)} ms`,
                            speed(each.sent_bytes_per_second),
                            speed(each.received_bytes_per_second),
                        ]),
                ),
            );
        }
    }
    return repetition.stop;
}

/** @param {number | null} bytesPerSecond */
function speed(bytesPerSecond) {
    return bytesPerSecond === null ? null : `${bytes(bytesPerSecond)}/s`;
}

/**
 * Return a process's version, marked if it is another one than the aggregator's.
 * @param {string | null} version
 * @param {Pick<Cluster, "version">} found
 */
export function versionOf(version, found) {
    return version && found.version && version !== found.version
        ? `${version}, another one than the aggregator's ${found.version}`
        : version;
}

/** @param {Cluster} found */
function rolesTable(found) {
    const heard = (/** @type {number | null} */ seconds) =>
        seconds === null ? null : `last message ${ago(seconds)}`;
    const rows = [
        ["aggregator", found.leader, null, found.version, `leads, epoch ${found.epoch}`],
        ...found.standbys.map((each) => ["standby", each.name, null, null, heard(each.seconds_since_heard)]),
        [
            "optimizer",
            found.tiers === 2 && !found.shards.length ? `within the aggregator` : found.optimizer,
            found.optimizer_host,
            versionOf(found.optimizer_version, found),
            null,
        ],
        ...found.shards.map((each, place) => [
            `shard ${place} of ${found.shards.length}`,
            each.name,
            each.address,
            versionOf(each.version, found),
            each.connected ? heard(each.seconds_since_heard) : `not connected: ${each.detail}`,
        ]),
    ];
    const jobs = found.running_jobs.map((job) =>
        h(
            "li",
            null,
            h("a", { href: `#/jobs/${encodeURIComponent(job)}` }, shortId(job)),
            found.job_waits[job] && `: ${found.job_waits[job]}`,
        ),
    );
    return h(
        "div",
        null,
        table(
            `Roles of this ${found.tiers}-tier cluster`,
            ["role", "name", "host", "version", "state"],
            rows,
        ),
        h(
            "p",
            null,
            found.running_jobs.length
                ? `${counted(found.running_jobs.length, "job")} running`
                : "No job runs.",
        ),
        jobs.length > 0 && h("ul", null, jobs),
    );
}

/** @param {import("./api.js").Wait} wait */
function waitItem(wait) {
    const peer = wait.peer === wait.role ? wait.role : `${wait.role} ${wait.peer}`;
    return h(
        "li",
        null,
        `${duration(wait.seconds)} for ${peer}: ${wait.what}, step ${wait.step} of job `,
        h("a", { href: `#/jobs/${encodeURIComponent(wait.job)}` }, shortId(wait.job)),
    );
}

/**
 * @param {Worker} worker
 * @param {Cluster} found
 * @returns {(Node | null)[]}
 */
function workerCard(worker, found) {
    const doing = workerDoing(worker);
    const stage = stageText(worker);
    const slowest = found.slowest_stages?.worker === worker.name;
    return [
        h("h3", null, worker.name, " ", badge(worker.state, SIGNS[worker.state])),
        h(
            "p",
            { class: "doing" },
            doing,
            worker.job && [
                " ",
                h("a", { href: `#/jobs/${encodeURIComponent(worker.job)}` }, `job ${shortId(worker.job)}`),
            ],
        ),
        meshTable(worker, doing),
        facts([
            ["host", worker.host],
            ["version", versionOf(worker.version, found)],
            ["pipeline", stage && `${stage} of row ${worker.row}${slowest ? ", the slowest" : ""}`],
            ["weights", worker.generation || worker.step ? `of step ${worker.step}` : ""],
            ["speed", workerSpeed(worker)],
            ["last message", ago(worker.seconds_since_heard)],
            ...(worker.chips ?? []).slice(0, 32).map(
                (chip, place) =>
                    /** @type {[string, string]} */ ([
                        `chip ${place}`,
                        Object.entries(chip)
                            .map(([name, value]) => `${name} ${value}`)
                            .join(", "),
                    ]),
            ),
        ]),
    ];
}
