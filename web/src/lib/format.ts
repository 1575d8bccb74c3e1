/** Numbers and dates as text. */

const whole = new Intl.NumberFormat("en");

export function count(value: number): string {
  return whole.format(value);
}

export function plural(value: number, noun: string, many = `${noun}s`): string {
  return `${count(value)} ${value === 1 ? noun : many}`;
}

/** Seconds, as precise as is worth reading. */
export function seconds(value: number): string {
  return value < 10 ? `${value.toFixed(2)} s` : `${value.toFixed(0)} s`;
}

export function rate(value: number): string {
  return value < 100 ? value.toFixed(1) : value.toFixed(0);
}

/** A log-probability as a percentage. */
export function percent(logprob: number): string {
  const value = 100 * Math.exp(logprob);
  if (value >= 99.95) return "100%";
  return value >= 0.1 ? `${value.toFixed(1)}%` : `${value.toPrecision(1)}%`;
}

/** What white space and nothing look like where a token is named. */
export function visibleToken(text: string): string {
  if (text === "") return "∅";
  return text.replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥");
}

const DAY_MS = 86_400_000;

/** The heading under which a conversation stands in the list. */
export function period(time: number, now = Date.now()): string {
  const today = new Date(now).setHours(0, 0, 0, 0);
  if (time >= today) return "Today";
  if (time >= today - DAY_MS) return "Yesterday";
  if (time >= today - 7 * DAY_MS) return "Last 7 days";
  if (time >= today - 30 * DAY_MS) return "Last 30 days";
  return "Older";
}
