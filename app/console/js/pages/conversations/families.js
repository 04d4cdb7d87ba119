// Branches below the conversations that they left, and many short conversations as one row.

/** As many conversations of one exchange, one after the other, are shown as one row where there are longer ones. */
const FOLDED_RUN = 5;
const MESSAGES_OF_ONE_EXCHANGE = 3;

/** More branches than this are shown once they are asked for. */
const SHOWN_BRANCHES = 3;

/**
 * The rows of a list, each branch below its parent. A family stands where the first of it stood. A branch whose parent is
 * not among the rows stands for itself.
 * @param {object[]} records  of the list, each with `id` and `parent`
 * @param {Map<string, boolean>} toggled  by id of a parent, what somebody chose: whether its branches are shown
 * @returns {{record: object, depth: number, branches: number, isOpen: boolean}[]}
 */
export function arrangeFamilies(records, toggled) {
  const byId = new Map(records.map((record) => [record.id, record]));
  const children = new Map();
  for (const record of records) {
    const parent = parentOf(record, byId);
    if (parent) children.set(parent.id, [...(children.get(parent.id) ?? []), record]);
  }
  const rows = [];
  const add = (record, depth) => {
    const branches = children.get(record.id) ?? [];
    const isOpen = toggled.get(record.id) ?? branches.length <= SHOWN_BRANCHES;
    rows.push({ record, depth, branches: branches.length, isOpen });
    if (isOpen) branches.forEach((branch) => add(branch, depth + 1));
  };
  const begun = new Set();
  for (const record of records) {
    let first = record;
    for (let parent = parentOf(first, byId); parent; parent = parentOf(parent, byId)) first = parent;
    if (!begun.has(first.id)) add(first, 0);
    begun.add(first.id);
  }
  return rows;
}

const parentOf = (record, byId) => (record.parent ? byId.get(record.parent.conversation_id) : undefined);

/**
 * The same rows, with each long run of conversations of one exchange as one row before them, and its rows only if it is open.
 * @param {object[]} rows  of `arrangeFamilies`
 * @param {Set<string>} opened  the ids of conversations with which open runs begin
 */
export function foldShortRuns(rows, opened) {
  if (rows.every(isShort)) return rows;
  const shown = [];
  for (let at = 0; at < rows.length; ) {
    let end = at;
    while (end < rows.length && isShort(rows[end])) end += 1;
    const run = rows.slice(at, Math.max(end, at + 1));
    const first = run[0].record.id;
    if (run.length >= FOLDED_RUN) shown.push({ run, id: first, isOpen: opened.has(first) });
    if (run.length < FOLDED_RUN || opened.has(first)) shown.push(...run);
    at += run.length;
  }
  return shown;
}

/** One question and its answer, at most with an instruction, which nobody gave a title. */
const isShort = ({ record, depth, branches }) =>
  depth + branches === 0 && record.messages > 0 && record.messages <= MESSAGES_OF_ONE_EXCHANGE && !record.parent && !record.metadata.title;
