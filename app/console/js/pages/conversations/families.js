// Branches below the conversations that they left.

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
