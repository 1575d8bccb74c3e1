/** Drawing much a little at a time, when the page is idle. */

import { useEffect, useState } from "preact/hooks";

/** How many of `total` things to draw now: `first`, then `more` each time the page is idle. */
export function useGradually(total: number, first: number, more: number): number {
  const [allowed, setAllowed] = useState(first);
  const isWaiting = allowed < total;
  useEffect(() => {
    if (!isWaiting) return;
    const later = window.requestIdleCallback ?? ((work: () => void) => window.setTimeout(work, 50));
    const cancel = window.cancelIdleCallback ?? window.clearTimeout;
    const handle = later(() => setAllowed((before) => before + more));
    return () => cancel(handle);
  }, [isWaiting, allowed, more]);
  return Math.min(allowed, total);
}
