/** Files for the user to keep. */

export function saveFile(name: string, text: string): void {
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** The name of an export: what it holds, and the day. */
export function exportName(what: string): string {
  const name = what.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40);
  return `chatserve-${name}-${new Date().toISOString().slice(0, 10)}.json`;
}
