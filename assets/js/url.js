// The address holds what is looked at: ?tab=…&run=…&step=…&group=…&sample=…. Reload, second tab and a sent link show the same.

const NAMES = ["tab", "run", "step", "group", "sample"];

export function read() {
  const query = new URLSearchParams(location.search);
  return Object.fromEntries(NAMES.map((name) => [name, query.get(name)]));
}

/** Changes some of it; null removes. Other parameters of the address are left alone. */
export function write(changes) {
  const address = new URL(location.href);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined) address.searchParams.delete(name);
    else address.searchParams.set(name, value);
  }
  if (address.href !== location.href) history.replaceState(history.state, "", address);
}
