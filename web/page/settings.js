/** Settings of jobs beside each other, and the place of a setting in a config. Pure, without a document. */

/** @typedef {Record<string, unknown>} Settings */

/**
 * Return the settings that are not the same in all jobs, by key in alphabetical order.
 * @param {Settings[]} jobs
 * @returns {{ key: string, values: unknown[] }[]}
 */
export function differingSettings(jobs) {
    const keys = [...new Set(jobs.flatMap((each) => Object.keys(each)))].sort();
    return keys
        .map((key) => ({ key, values: jobs.map((each) => each[key]) }))
        .filter(({ values }) => new Set(values.map(canonical)).size > 1);
}

/**
 * Return a value as a text that is the same for the same value, whatever the order of an object's keys.
 * @param {unknown} value
 * @returns {string}
 */
function canonical(value) {
    if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
    if (value !== null && typeof value === "object") {
        const entries = Object.entries(value).sort(([one], [other]) => (one < other ? -1 : 1));
        return `{${entries.map(([key, each]) => `${JSON.stringify(key)}:${canonical(each)}`).join(",")}}`;
    }
    return JSON.stringify(value) ?? "absent";
}

/**
 * Return the number of the line that has a setting, from 1, by the indentation of YAML's block style; null if none has.
 * @param {string} yaml
 * @param {string} field Dotted key.
 */
export function lineOfSetting(yaml, field) {
    const wanted = field.split(".");
    /** @type {{ indent: number, key: string }[]} */
    const open = [];
    let best = { depth: 0, line: 0 };
    yaml.split("\n").forEach((line, place) => {
        const found = /^( *)(?:- )?["']?([\w.-]+)["']?\s*:/.exec(line);
        if (!found) return;
        const indent = found[1].length;
        while (open.length && open[open.length - 1].indent >= indent) open.pop();
        open.push({ indent, key: found[2] });
        const depth = open.length;
        if (depth > best.depth && open.every((each, level) => each.key === wanted[level])) {
            best = { depth, line: place + 1 };
        }
    });
    return best.line || null;
}
